"""A decode rank's side of the peer link: one DEALER per prefill rank in the registry."""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import zmq

from kvtransfer.handshake import HELLO_S, MAX_TAKEN, MISSING_S, REFRESH_S, Key, Said, identity, mismatch
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.core.messages import Cancelled, Hello, Refused, ToDecode
from tandem.runtime.links import Inbox, Sockets, encode, post

log = logging.getLogger("tandem.kvtransfer")


@dataclass(slots=True)
class _Callee:
    """A prefill rank, on a decode rank."""

    member: Member
    inbox: Inbox[ToDecode]
    hello: Hello | None = None  # None: not open
    said_s: float | None = None  # when the last Hello was sent
    answered: bool = False  # with a Hello or a Refused
    refusal: str = ""
    missing_s: float | None = None


class CallingLink:
    """A decode rank's side."""

    address = ""

    def __init__(self, sockets: "Sockets[zmq.Socket[bytes]]", hello: Hello, timer_scale: float = 1.0) -> None:
        self.counts: Counter[str] = Counter()
        self._sockets = sockets
        self._me = hello
        self._scale = timer_scale
        self._peers: dict[Key, _Callee] = {}
        self._now_s = 0.0
        self._lost: deque[PeerLost] = deque()

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """See PeerLink."""
        peer = self._peers.get((group, rank))
        return None if peer is None else peer.hello

    def on_members(self, members: Sequence[Member]) -> None:
        """Call every prefill rank that is new or has another incarnation or address; forget who is long missing."""
        there = {(member.group.name, member.rank): member for member in members if member.peers}
        for key, peer in list(self._peers.items()):
            if key in there:
                peer.missing_s = None
            elif peer.missing_s is None:
                peer.missing_s = self._now_s
            elif self._now_s - peer.missing_s >= MISSING_S * self._scale:
                self._drop(key)
        for key, member in there.items():
            known = self._peers.get(key)
            if known is not None and _same(known.member, member):
                continue
            if known is not None:
                self._drop(key)
            socket = self._sockets.connect(zmq.DEALER, member.peers, identity(self._me))
            self._peers[key] = _Callee(member, Inbox(socket, ToDecode))
        self._greet()

    def send(self, group: str, rank: RankId, message: Said) -> None:
        """To an open peer, else dropped and counted."""
        peer = self._peers.get((group, rank))
        sent = peer is not None and peer.hello is not None and post(peer.inbox.socket, encode(message))
        self.counts["unsent"] += not sent

    def receive(self) -> Iterator[Event]:
        """See PeerLink."""
        while self._lost:
            yield self._lost.popleft()
        for key, peer in list(self._peers.items()):
            for _ in range(MAX_TAKEN):
                before = peer.inbox.malformed
                message = peer.inbox.receive()
                self.counts["malformed"] += peer.inbox.malformed - before
                if message is None:
                    break
                yield from self._on_message(key, peer, message)

    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """See PeerLink."""
        return [peer.inbox.socket for peer in self._peers.values()]

    @property
    def greeting(self) -> bool:
        """See PeerLink."""
        return any(peer.said_s is None for peer in self._peers.values())

    def tick(self, now_s: float) -> None:
        """Greet again where that is due."""
        self._now_s = now_s
        self._greet()

    def close(self) -> None:
        """Hang up."""
        for peer in self._peers.values():
            peer.inbox.socket.close(0)
        self._peers.clear()

    def refusals(self) -> dict[Key, str]:
        """See PeerLink."""
        return {key: peer.refusal for key, peer in self._peers.items() if peer.refusal}

    def _on_message(self, key: Key, peer: _Callee, message: ToDecode) -> Iterator[Event]:
        match message:
            case Hello():
                yield from self._on_hello(key, peer, message)
            case Refused(detail=detail):
                yield from _shut(key, peer)
                self._refused(peer, detail)
            case _ if peer.hello is None or (isinstance(message, Cancelled) and message.group != key[0]):
                self.counts["stranger"] += 1
            case _:
                yield message

    def _on_hello(self, key: Key, peer: _Callee, hello: Hello) -> Iterator[Event]:
        if (hello.group, hello.rank) != key:
            self.counts["stranger"] += 1
            return
        if peer.hello is not None and peer.hello.incarnation == hello.incarnation:
            return
        yield from _shut(key, peer)
        if (detail := mismatch(self._me, hello)) is not None:
            self._refused(peer, detail)
            return
        peer.hello, peer.answered, peer.refusal = hello, True, ""
        yield PeerOpened(hello)

    def _refused(self, peer: _Callee, detail: str) -> None:
        self.counts["refused"] += 1
        if detail != peer.refusal:
            log.warning("refused by a peer: %s", detail)
        peer.answered, peer.refusal = True, detail

    def _greet(self) -> None:
        """Say Hello wherever it is due. What cannot leave yet, for want of a connection, is tried at every call."""
        for peer in self._peers.values():
            rest_s = (REFRESH_S if peer.answered else HELLO_S) * self._scale
            if peer.said_s is not None and self._now_s - peer.said_s < rest_s:
                continue
            if post(peer.inbox.socket, encode(self._me)):
                peer.said_s = self._now_s

    def _drop(self, key: Key) -> None:
        peer = self._peers.pop(key)
        peer.inbox.socket.close(0)
        self._lost.extend(_shut(key, peer))


def _shut(key: Key, peer: _Callee) -> Iterator[PeerLost]:
    if peer.hello is not None:
        peer.hello, peer.answered = None, False
        yield PeerLost(*key)


def _same(known: Member, member: Member) -> bool:
    return (known.peers, known.incarnation) == (member.peers, member.incarnation)
