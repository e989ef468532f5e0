"""Rank 0's link to the routers: which router submitted which room, and whether that router is still there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import zmq

from tandem.core.ids import Room
from tandem.core.inputs import Control, Knobs, Submit
from tandem.core.messages import SILENT_S, Cancel, Done, Evicted, Load, ToGroup, Token, Watch
from tandem.core.requests import Reason
from tandem.runtime.links import RouterInbox, encode, post

UNREAD = 1 << 18
"""Words that wait for one router, at most: a thousand streams for seconds, some ten MiB. One more costs its request an
attempt, and a router that is too slow even more time."""
FAREWELL_MS = 100
MAX_TAKEN = 256
"""Messages of one round; the next poll returns at once for the rest."""


@dataclass(slots=True)
class _Router:
    heard_s: float
    rooms: dict[Room, None] = field(default_factory=dict)
    spoilt: dict[Room, None] = field(default_factory=dict)
    """Of which it has missed a word, and does not know it yet."""


class RouterLink:
    """Takes requests and orders, tells whoever submitted what became of it, and answers each Watch with the Load."""

    def __init__(self, socket: "zmq.Socket[bytes]", load: Callable[[], Load], timer_scale: float = 1.0) -> None:
        self._load = load
        self._silent_s = SILENT_S * timer_scale
        self._inbox: RouterInbox[ToGroup] = RouterInbox(socket, ToGroup)
        self._routers: dict[bytes, _Router] = {}
        self._owner: dict[Room, bytes] = {}
        self._spoilt: list[Room] = []  # that are still computed
        self.undelivered = 0  # answers to routers that have gone, or do not read

    @property
    def malformed(self) -> int:
        """Messages that were none, dropped."""
        return self._inbox.malformed

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        """For the poller."""
        return self._inbox.socket

    def receive(self, now_s: float) -> Iterator[Submit | Cancel | Control | Knobs]:
        """What routers ask for, at most MAX_TAKEN at a time: the ring must not wait for a storm."""
        for _ in range(MAX_TAKEN):
            received = self._inbox.receive()
            if received is None:
                return
            identity, message = received
            router = self._routers.setdefault(identity, _Router(now_s))
            router.heard_s = now_s
            match message:
                case Submit(work=work):
                    if work.room not in self._owner:
                        self._owner[work.room] = identity
                        router.rooms[work.room] = None
                    yield message
                case Cancel() | Control() | Knobs():
                    yield message
                case Watch():
                    post(self._inbox.socket, identity, encode(self._load()))

    def tell(self, message: Token | Done | Evicted) -> None:
        """To the router that submitted the room; one that has gone, or does not read, is not waited for.

        After a word that did not leave nothing more is said of the room, but for its end: a text without gaps.
        """
        identity = self._owner.get(message.room)
        if identity is None:
            self.undelivered += 1
        elif not post(self._inbox.socket, identity, encode(message)):
            self.undelivered += 1
            self._spoilt.append(message.room)
            self._routers[identity].spoilt[message.room] = None
            self.forget(message.room)
        if isinstance(message, Done | Evicted):  # the last word
            self.forget(message.room)

    def forget(self, room: Room) -> None:
        """The room has gone."""
        identity = self._owner.pop(room, None)
        if identity is not None:
            self._routers[identity].rooms.pop(room, None)

    def close(self, reason: Reason) -> None:
        """The epoch is over: every open request hears so, and the messages get FAREWELL_MS to leave."""
        for room in list(self._owner):
            self.tell(Done(room, reason))
        self._inbox.socket.close(FAREWELL_MS)

    def abandoned(self, now_s: float) -> list[Cancel]:
        """Abort the rooms of routers that have fallen silent, and those of which a word was lost. Call it every second.

        Whoever lives has those computed anew, once it hears of it.
        """
        cancels, self._spoilt = [Cancel(room, Reason.CLIENT_GONE) for room in self._spoilt], []
        for identity, router in list(self._routers.items()):
            if now_s - router.heard_s > self._silent_s:
                cancels += [Cancel(room, Reason.CLIENT_GONE) for room in router.rooms]
                for room in list(router.rooms):
                    del self._owner[room]
                del self._routers[identity]
            else:
                self._confess(identity, router)
        return cancels

    def _confess(self, identity: bytes, router: _Router) -> None:
        """Say of which rooms it has missed a word, as far as it takes that."""
        for room in list(router.spoilt):
            if not post(self._inbox.socket, identity, encode(Done(room, Reason.CLIENT_GONE))):
                return
            del router.spoilt[room]
