"""Rank 0's link to the routers: which router submitted which room, and whether that router is still there."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from tandem.core.ids import Room
from tandem.core.inputs import Control, Knobs, Submit
from tandem.core.journal import Journal, Telling
from tandem.core.messages import SILENT_S, Cancel, Done, Evicted, Load, Portion, ToGroup, Token, ToRouter, Watch
from tandem.core.portions import Portions
from tandem.core.requests import Reason
from tandem.runtime.links import RouterInbox, encode, post

UNREAD = 1 << 13
"""Frames that wait for one router, at most: all that a group says in seconds, some ten MiB. One more costs each request
in it an attempt, and a router that is too slow even more time."""
BATCH = 64
"""Words in a frame: with all their log-probabilities less than the router takes. Waiting for more would save little."""
FAREWELL_MS = 100
MAX_TAKEN = 256
"""Messages of one round; the next poll returns at once for the rest."""
MAX_PIECES = 4
"""Messages about the prefix cache to one router in one round: their hashes cost the ring some hundred microseconds."""
CAUSE_CHARS = 300
"""Of a cause: one may quote whole messages, and each room is told."""
BEHIND_MS = 5
"""How soon the next round comes while a router has not been told all of the prefix cache."""


@dataclass(slots=True)
class _Router:
    identity: bytes
    heard_s: float
    words: list[Token | Portion | Done | Evicted | Load] = field(default_factory=list)
    """To be said at the end of the round."""
    rooms: dict[Room, None] = field(default_factory=dict)
    spoilt: dict[Room, None] = field(default_factory=dict)
    """Of which it has missed a word, and does not know it yet."""
    telling: Telling | None = None  # of the prefix cache, if it wants to hear of it


class RouterLink:
    """Takes requests and orders, tells whoever submitted what became of it, and answers each Watch with the Load.

    What a round has for a router leaves as one frame: call `flush` at its end. Who watches the prefix cache is told of
    each change before anything else that comes of it.
    """

    def __init__(
        self, socket: "zmq.Socket[bytes]", load: Callable[[], Load], journal: Journal, timer_scale: float = 1.0
    ) -> None:
        self._load = load
        self._journal = journal
        self._journal_told = 0  # up to here, whoever watches was told all
        self._silent_s = SILENT_S * timer_scale
        self._inbox: RouterInbox[ToGroup] = RouterInbox(socket, ToGroup)
        self._routers: dict[bytes, _Router] = {}
        self._owner: dict[Room, _Router] = {}
        self._portions = Portions()
        self._with_words: dict[bytes, _Router] = {}
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
            router = self._routers.get(identity)
            if router is None:
                router = self._routers[identity] = _Router(identity, now_s)
            router.heard_s = now_s
            match message:
                case Submit():
                    yield self._submitted(router, message)
                case Cancel() | Control() | Knobs():
                    yield message
                case Watch(cached=cached):
                    self._say(router, self._load())
                    self._watches(router, cached)

    def _submitted(self, router: _Router, submit: Submit) -> Submit:
        """As the group sees it."""
        room = submit.work.room
        if room not in self._owner:
            self._owner[room] = router
            router.rooms[room] = None
            if submit.whole:
                self._portions.begin(room)
        return Submit(submit.work, submit.remaining_ms)

    def _watches(self, router: _Router, cached: int | None) -> None:
        if cached is None:
            router.telling = None
            return
        if router.telling is None:
            router.telling = Telling(self._journal)
        router.telling.heard(cached)
        self._journal_told = -1

    @property
    def behind(self) -> bool:
        """Some router was not told all of the prefix cache yet."""
        return self._journal_told != self._journal.number

    def tell_cached(self) -> None:
        """Tell of the prefix cache what is new, as far as MAX_PIECES go. Costs nothing while nothing is."""
        if self._journal_told == self._journal.number:
            return
        told = [self._tell_cached(router) for router in self._routers.values()]
        self._journal_told = self._journal.number if all(told) else -1

    def _tell_cached(self, router: _Router) -> bool:
        """False when there is more to tell."""
        if router.telling is None:
            return True
        for _ in range(MAX_PIECES):
            cached = router.telling.next()
            if cached is None:
                return True
            if not self._post(router, [cached]):
                return False
            router.telling.told(cached)
        return False

    def tell(self, message: Token | Done | Evicted) -> None:
        """To the router that submitted the room, by the end of the round; one that has gone is not waited for.

        Of a room that is told whole, tokens wait until they make a portion.
        """
        router = self._owner.get(message.room)
        if router is None:
            self.undelivered += 1
        elif isinstance(message, Token):
            if (word := self._portions.next(message)) is not None:
                self._say(router, word)
        else:  # the last word
            if (rest := self._portions.rest(message.room)) is not None:
                self._say(router, rest)
            if message.room in self._owner:  # or what was kept back did not leave
                self._say(router, message)
                self.forget(message.room)

    def flush(self) -> None:
        """Say all that is to be said. Costs nothing while nothing is."""
        self.tell_cached()
        for router in self._with_words.values():
            self._speak(router)
        self._with_words.clear()

    def _say(self, router: _Router, word: Token | Portion | Done | Evicted | Load) -> None:
        router.words.append(word)
        self._with_words[router.identity] = router
        if len(router.words) == BATCH:
            self.tell_cached()
            self._speak(router)

    def _speak(self, router: _Router) -> None:
        """After a word that did not leave nothing more is said of its room, but for its end: a text without gaps."""
        words, router.words = router.words, []
        if not words or self._post(router, words):
            return
        for word in words:
            if not isinstance(word, Load):
                self.undelivered += 1
                self._spoilt.append(word.room)
                router.spoilt[word.room] = None
                self.forget(word.room)

    def _post(self, router: _Router, words: Sequence[ToRouter]) -> bool:
        return post(self._inbox.socket, router.identity, encode(words))

    def forget(self, room: Room) -> None:
        """The room has gone."""
        self._portions.forget(room)
        router = self._owner.pop(room, None)
        if router is not None:
            router.rooms.pop(room, None)

    def close(self, reason: Reason, cause: str) -> None:
        """The epoch is over: every open request hears so, and the messages get FAREWELL_MS to leave."""
        for room in list(self._owner):
            self.tell(Done(room, reason, cause[:CAUSE_CHARS]))
        self.flush()
        self._inbox.socket.close(FAREWELL_MS)

    def abandoned(self, now_s: float) -> list[Cancel]:
        """Abort the rooms of routers that have fallen silent, and those of which a word was lost. Call it every second.

        Whoever lives has those computed anew, once it hears of it.
        """
        cancels, self._spoilt = [Cancel(room, Reason.CLIENT_GONE) for room in self._spoilt], []
        for router in list(self._routers.values()):
            if now_s - router.heard_s > self._silent_s:
                cancels += [Cancel(room, Reason.CLIENT_GONE) for room in router.rooms]
                for room in list(router.rooms):
                    self.forget(room)
                del self._routers[router.identity]
            else:
                self._confess(router)
        return cancels

    def _confess(self, router: _Router) -> None:
        """Say of which rooms it has missed a word, as far as it takes that."""
        while rooms := list(itertools.islice(router.spoilt, BATCH)):
            if not self._post(router, [Done(room, Reason.CLIENT_GONE) for room in rooms]):
                return
            for room in rooms:
                del router.spoilt[room]
