"""A decode rank's side of the peer link: one DEALER per prefill rank in the registry."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec
import zmq

from kvtransfer.absences import Absences
from kvtransfer.edges import Edges
from kvtransfer.fences import Fences
from kvtransfer.handshake import (
    HELLO_S,
    MAX_TAKEN,
    MISSING_S,
    REFRESH_S,
    Key,
    Said,
    identity,
    known_answer,
    mismatch,
)
from kvtransfer.openings import Openings
from kvtransfer.reliable import Session
from kvtransfer.tail import Tail
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import Epoch, RankId
from tandem.core.members import Member
from tandem.core.messages import (
    Cancelled,
    Heard,
    Hello,
    Numbered,
    Refused,
    SaidByPrefill,
    ToDecode,
)
from tandem.runtime.links import Inbox, Sockets, encode, post

log = logging.getLogger("tandem.kvtransfer")

Talk = Session[Said, SaidByPrefill]


@dataclass(slots=True)
class _Callee:
    """A prefill rank, on a decode rank."""

    member: Member
    inbox: Inbox[ToDecode]
    slot: int  # of our tail: where it writes the known answer
    session: Talk  # that we greet it with, or that is open
    greeted: Hello | None = None  # the last one, with this session
    hello: Hello | None = None  # its answer; None: not open
    said_s: float | None = None  # when it was last greeted or reminded
    answered: bool = False  # with a Hello or a Refused
    refusal: str = ""


class CallingLink:
    """A decode rank's side."""

    address = ""

    def __init__(
        self,
        sockets: "Sockets[zmq.Socket[bytes]]",
        hello: Hello,
        edges: Edges,
        tail: Tail,
        fences: Fences,
        wake: Callable[[], None],
        timer_scale: float = 1.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._sockets = sockets
        self._me = hello
        self._tail = tail
        self._fences = fences
        self._openings = Openings(edges, wake, timer_scale)
        self._absences = Absences(MISSING_S * timer_scale)
        self._scale = timer_scale
        self._peers: dict[Key, _Callee] = {}
        self._unmet: dict[Key, str] = {}
        self._numbers = count(1)
        self._now_s = 0.0
        self._impatient = False  # somebody may be greeted before the next tick
        self._lost: deque[PeerLost] = deque()

    def begin(self, epoch: Epoch) -> None:
        """See PeerLink."""
        self._me = msgspec.structs.replace(self._me, epoch=epoch)

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """See PeerLink."""
        peer = self._peers.get((group, rank))
        return None if peer is None else peer.hello

    def on_members(self, members: Sequence[Member]) -> None:
        """Call every prefill rank that is new or has another incarnation or address; forget who is long missing."""
        there = {(member.group.name, member.rank): member for member in members if member.peers}
        for key in self._absences.update(self._peers, there, self._now_s):
            self._drop(key)
        self._unmet.clear()
        for key, member in there.items():
            known = self._peers.get(key)
            if known is None or not _same(known.member, member):
                self._call(key, member)
        self._greet()

    def fence(self, group: str) -> None:
        """Lose the group's ranks; they are greeted again when the fence is done."""
        for key, peer in self._peers.items():
            if key[0] == group:
                self._lost.extend(self._lose(key, peer))
        self._openings.forget(group)

    def send(self, group: str, rank: RankId, message: Said) -> None:
        """To an open peer, else dropped and counted."""
        peer = self._peers.get((group, rank))
        if peer is None or peer.hello is None:
            self.counts["unsent"] += 1
        elif not peer.session.say(message):
            log.warning("%s/%s has not heard us for too long: it is lost", group, rank)
            self._lost.extend(self._lose((group, rank), peer))

    def receive(self) -> Iterator[Event]:
        """See PeerLink."""
        while self._lost:
            yield self._lost.popleft()
        self._impatient |= self._fences.take() | self._openings.take(self._now_s)
        self._fences.begin()
        for key, peer in list(self._peers.items()):
            for _ in range(MAX_TAKEN):
                before = peer.inbox.malformed
                message = peer.inbox.receive()
                self.counts["malformed"] += peer.inbox.malformed - before
                if message is None:
                    break
                yield from self._on_message(key, peer, message)
            peer.session.answer()
        if self._impatient:
            self._greet()

    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """See PeerLink."""
        return [peer.inbox.socket for peer in self._peers.values()]

    @property
    def greeting(self) -> bool:
        """See PeerLink."""
        return any(peer.said_s is None and peer.greeted is not None for peer in self._peers.values())

    @property
    def unheard(self) -> int:
        """See PeerLink."""
        return sum(peer.session.unheard for peer in self._peers.values())

    def tick(self, now_s: float) -> None:
        """Greet again where that is due, say again what has not been heard."""
        self._now_s = now_s
        for peer in self._peers.values():
            peer.session.tick(now_s)
        self._greet()

    def close(self) -> None:
        """Hang up."""
        for peer in self._peers.values():
            peer.inbox.socket.close(0)
        self._peers.clear()

    def refusals(self) -> dict[Key, str]:
        """See PeerLink."""
        failed = {key: self._openings.failures.get(key[0]) for key in self._peers}
        why = {key: peer.refusal or failed[key] for key, peer in self._peers.items()}
        return {key: text for key, text in why.items() if text} | self._unmet

    # what comes in

    def _on_message(self, key: Key, peer: _Callee, message: ToDecode) -> Iterator[Event]:
        match message:
            case Hello():
                yield from self._on_hello(key, peer, message)
            case Refused(detail=detail):
                yield from self._refused(key, peer, detail)
            case _ if message.session != peer.session.number:
                self.counts["stale"] += 1
            case Heard():
                if not peer.session.on_heard(message):
                    yield from self._lose(key, peer)
            case Numbered():
                yield from self._hear(key, peer, message)

    def _hear(self, key: Key, peer: _Callee, message: Numbered[SaidByPrefill]) -> Iterator[Event]:
        if peer.hello is None:
            self.counts["stranger"] += 1
            return
        said = peer.session.on_numbered(message)
        if isinstance(said, Cancelled) and said.group != key[0]:
            self.counts["stranger"] += 1
        elif said is not None:
            yield said

    def _on_hello(self, key: Key, peer: _Callee, hello: Hello) -> Iterator[Event]:
        if (hello.group, hello.rank) != key:
            self.counts["stranger"] += 1
        elif hello.session != peer.session.number or peer.greeted is None:
            self.counts["stale"] += 1
        elif peer.hello is not None:
            if peer.hello != hello:  # its successor on the same address has taken up the session
                yield from self._lose(key, peer)
        elif (detail := mismatch(self._me, hello)) is not None:
            yield from self._refused(key, peer, detail)
        elif self._tail.read(peer.slot) != known_answer(hello, peer.greeted):
            name = f"{hello.group}/{hello.rank}"
            yield from self._refused(key, peer, f"the known answer that {name} says it has written is not there")
        else:
            peer.hello, peer.answered, peer.refusal = hello, True, ""
            yield PeerOpened(hello)

    def _refused(self, key: Key, peer: _Callee, detail: str) -> Iterator[PeerLost]:
        """It is greeted again, but not at once."""
        self.counts["refused"] += 1
        if detail != peer.refusal:
            log.warning("refused by a peer: %s", detail)
        yield from self._lose(key, peer)
        peer.answered, peer.refusal, peer.said_s = True, detail, self._now_s

    # whom we call

    def _call(self, key: Key, member: Member) -> None:
        slot = self._tail.slot(key)
        if slot is None:
            self._unmet[key] = "there are more prefill ranks than can be met"
            return
        if key in self._peers:
            self._drop(key)
        inbox: Inbox[ToDecode] = Inbox(self._sockets.connect(zmq.DEALER, member.peers, identity(self._me)), ToDecode)
        self._peers[key] = _Callee(member, inbox, slot, self._session(inbox))

    def _session(self, inbox: Inbox[ToDecode]) -> Talk:
        return Session(next(self._numbers), partial(_post, inbox))

    def _greet(self) -> None:
        """Say Hello wherever it is due. What cannot leave yet, for want of a connection, is tried at every call.

        An open session is only recalled: a successor on the same address must not take up what it does not know.
        """
        self._impatient = False
        for (group, _), peer in self._peers.items():
            rest_s = (REFRESH_S if peer.answered else HELLO_S) * self._scale
            if peer.said_s is not None and self._now_s - peer.said_s < rest_s:
                continue
            if peer.hello is not None:
                peer.session.remind()
                peer.said_s = self._now_s
                continue
            if self._fences.going_on(group) or (endpoint := self._openings.endpoint(group, self._now_s)) is None:
                continue
            peer.greeted = msgspec.structs.replace(
                self._me,
                endpoint=endpoint,
                probe=self._tail.address(peer.slot),
                fence=self._fences.count(group),
                session=peer.session.number,
            )
            if _post(peer.inbox, peer.greeted):
                peer.said_s = self._now_s

    def _lose(self, key: Key, peer: _Callee) -> list[PeerLost]:
        """Begin anew with a peer."""
        lost = [PeerLost(*key)] if peer.hello is not None else []
        peer.session, peer.greeted, peer.hello = self._session(peer.inbox), None, None
        peer.said_s, peer.answered, self._impatient = None, False, True
        return lost

    def _drop(self, key: Key) -> None:
        peer = self._peers.pop(key)
        peer.inbox.socket.close(0)
        if peer.hello is not None:
            self._lost.append(PeerLost(*key))


def _post(inbox: Inbox[ToDecode], message: Hello | Numbered[Said] | Heard) -> bool:
    return post(inbox.socket, encode(message))


def _same(known: Member, member: Member) -> bool:
    return (known.peers, known.incarnation) == (member.peers, member.incarnation)
