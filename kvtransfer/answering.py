"""A prefill rank's side of the peer link: one ROUTER that decode ranks call."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import msgspec
import zmq

from kvtransfer.absences import Absences
from kvtransfer.breaker import Breakers
from kvtransfer.edges import Edges
from kvtransfer.fences import Fences
from kvtransfer.handshake import MAX_TAKEN, MISSING_S, Key, Said, identity, mismatch
from kvtransfer.parted import RETIRED, Parted
from kvtransfer.reliable import Session
from kvtransfer.tail import Tail
from kvtransfer.trials import Trial, Trials
from tandem.core.events import Event, PeerLost, PeerOpened, Written
from tandem.core.ids import Epoch, RankId
from tandem.core.members import Member
from tandem.core.messages import (
    FORGOTTEN,
    Cancelled,
    Heard,
    Hello,
    Numbered,
    Refused,
    SaidByDecode,
    ToPrefill,
)
from tandem.runtime.links import RouterInbox, Sockets, encode, post, socket_name

log = logging.getLogger("tandem.kvtransfer")

Talk = Session[Said, SaidByDecode]


@dataclass(slots=True)
class _Caller:
    """A decode rank, on a prefill rank."""

    hello: Hello
    session: Talk
    answer: Hello | None = None  # what it was told when it was opened; until then its trial goes on


class AnsweringLink:
    """A prefill rank's side."""

    def __init__(
        self,
        sockets: "Sockets[zmq.Socket[bytes]]",
        hello: Hello,
        edges: Edges,
        tail: Tail,
        fences: Fences,
        wake: Callable[[], None],
        where: str,
        timer_scale: float = 1.0,
    ) -> None:
        name = socket_name("peers", hello.group, hello.rank, hello.incarnation)
        socket, self.address = sockets.bind(zmq.ROUTER, where, name)
        self.counts: Counter[str] = Counter()
        self._inbox: RouterInbox[ToPrefill] = RouterInbox(socket, ToPrefill)
        self._me = hello
        self._tail = tail
        self._fences = fences
        self._wake = wake
        self._trials = Trials(hello, edges, tail, wake, timer_scale)
        self._breakers = Breakers(timer_scale)
        self._absences = Absences(MISSING_S * timer_scale)
        self._peers: dict[Key, _Caller] = {}
        self._keys: dict[bytes, Key] = {}
        self._parted = Parted()
        self._written: SimpleQueue[tuple[Hello, Written]] = SimpleQueue()
        self._owing: dict[Key, Talk] = {}
        self._now_s = 0.0
        self._lost: deque[PeerLost] = deque()

    def begin(self, epoch: Epoch) -> None:
        """See PeerLink."""
        self._me = msgspec.structs.replace(self._me, epoch=epoch)

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """See PeerLink."""
        peer = self._peers.get((group, rank))
        return peer.hello if peer is not None and peer.answer is not None else None

    def on_members(self, members: Sequence[Member]) -> None:
        """Forget who has been missing for a while."""
        present = {(member.group.name, member.rank) for member in members}
        known = dict.fromkeys([*self._peers, *self._breakers])
        for key in self._absences.update(known, present, self._now_s):
            self._breakers.forget(key)
            self._lost.extend(self._forget(key))

    def fence(self, group: str) -> None:
        """Lose the group's ranks; they are answered again when the fence is done."""
        for key in [key for key in self._peers if key[0] == group]:
            self._lost.extend(self._forget(key))

    def wrote(self, hello: Hello, result: Written) -> None:
        """See PeerLink."""
        self._written.put((hello, result))
        if result is not Written.OK:
            self._wake()

    def send(self, group: str, rank: RankId, message: Said) -> None:
        """To an open peer, else dropped and counted."""
        key = group, rank
        peer = self._peers.get(key)
        if peer is None or peer.answer is None:
            self.counts["unsent"] += 1
        elif not peer.session.say(message):
            log.warning("%s/%s has not heard us for too long: it is lost", group, rank)
            self._lost.extend(self._forget(key))

    def receive(self) -> Iterator[Event]:
        """See PeerLink."""
        while self._lost:
            yield self._lost.popleft()
        self._fences.take()
        self._fences.begin()
        for trial in self._trials.take():
            yield from self._on_trial(trial)
        yield from self._on_written()
        for _ in range(MAX_TAKEN):
            received = self._inbox.receive()
            self.counts["malformed"] = self._inbox.malformed
            if received is None:
                break
            yield from self._on_message(*received)
        for session in self._owing.values():
            session.answer()
        self._owing.clear()

    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """See PeerLink."""
        return [self._inbox.socket]

    def refusals(self) -> dict[Key, str]:
        """See PeerLink."""
        return self._breakers.refusals(self._now_s)

    @property
    def greeting(self) -> bool:
        """See PeerLink: this side is greeted."""
        return False

    @property
    def unheard(self) -> int:
        """See PeerLink."""
        return sum(peer.session.unheard for peer in self._peers.values())

    def tick(self, now_s: float) -> None:
        """Say again what has not been heard."""
        self._now_s = now_s
        for peer in self._peers.values():
            peer.session.tick(now_s)

    def close(self) -> None:
        """Close the socket. A trial that goes on ends by its deadline, unheard."""
        self._inbox.socket.close(0)

    # what comes in

    def _on_message(self, sender: bytes, message: ToPrefill) -> Iterator[Event]:
        if isinstance(message, Hello):
            yield from self._on_hello(sender, message)
            return
        key = self._keys.get(sender)
        peer = self._peers[key] if key is not None else None
        if key is None or peer is None or peer.answer is None or message.session != peer.session.number:
            self.counts["stranger"] += 1
            if isinstance(message, Numbered) or message.seq != FORGOTTEN:
                self._post(sender, Heard(message.session, FORGOTTEN))
        elif isinstance(message, Heard):
            if not peer.session.on_heard(message):
                yield from self._forget(key)
        else:
            yield from self._hear(key, peer, message)

    def _hear(self, key: Key, peer: _Caller, message: Numbered[SaidByDecode]) -> Iterator[Event]:
        self._owing[key] = peer.session
        said = peer.session.on_numbered(message)
        if said is None:
            return
        if said.group == key[0] and (isinstance(said, Cancelled) or said.rank == key[1]):
            yield said
        else:
            self.counts["stranger"] += 1

    def _on_hello(self, sender: bytes, hello: Hello) -> Iterator[Event]:
        if sender != identity(hello):
            self.counts["stranger"] += 1
            return
        if self._parted.over(sender, hello.session):
            self.counts["stale"] += 1
            if not self._parted.retired(sender):
                self._post(sender, Heard(hello.session, FORGOTTEN))
            return
        if self._parted.past(hello.group, hello.rank, hello.epoch):
            self.counts["stale"] += 1
            return
        key = hello.group, hello.rank
        known = self._peers.get(key)
        if known is not None and known.hello == hello:
            if known.answer is not None:
                self._post(sender, known.answer)  # it was lost
            return
        if known is not None:
            yield from self._forget(key)
            if known.hello.incarnation != hello.incarnation:
                self._parted.end(identity(known.hello), RETIRED)
        if not self._fences.going_on(hello.group):
            self._try(key, sender, hello)

    def _try(self, key: Key, sender: bytes, hello: Hello) -> None:
        slot = self._tail.slot(key)
        if slot is None:
            self._refuse(sender, "more decode ranks call than can be met")
        elif (detail := mismatch(self._me, hello)) is not None:
            self._refuse(sender, detail)
        elif not (breaker := self._breakers.of(hello)).begin(self._now_s):
            self._refuse(sender, f"{self._me.group}/{self._me.rank}: {breaker.refusal(self._now_s)}")
        else:
            self._peers[key] = _Caller(hello, Session(hello.session, partial(self._post, sender)))
            self._keys[sender] = key
            self._trials.begin(hello, slot)

    def _on_trial(self, trial: Trial) -> Iterator[Event]:
        hello = trial.hello
        key = hello.group, hello.rank
        peer = self._peers.get(key)
        if peer is None or peer.hello != hello:
            return  # forgotten or replaced meanwhile
        self._breakers.of(hello).tried(trial.failure, self._now_s)
        if trial.failure is not None:
            self._part(key)
            self._refuse(identity(hello), trial.failure)
            return
        fence = self._fences.count(hello.group)
        answer = {"endpoint": trial.endpoint, "probe": hello.probe, "fence": fence, "session": hello.session}
        peer.answer = msgspec.structs.replace(self._me, **answer)
        self._post(identity(hello), peer.answer)
        yield PeerOpened(hello)

    def _on_written(self) -> Iterator[Event]:
        while True:
            try:
                hello, result = self._written.get_nowait()
            except Empty:
                return
            if self.hello(hello.group, hello.rank) != hello:
                continue
            breaker = self._breakers.of(hello)
            if not breaker.wrote(result is Written.OK, self._now_s):
                yield from self._part((hello.group, hello.rank))
                self._refuse(identity(hello), f"{self._me.group}/{self._me.rank}: {breaker.refusal(self._now_s)}")

    # whom we know

    def _forget(self, key: Key) -> list[PeerLost]:
        """Part with a rank, and let it know that it must begin anew."""
        if (peer := self._peers.get(key)) is not None:
            self._post(identity(peer.hello), Heard(peer.hello.session, FORGOTTEN))
        return self._part(key)

    def _part(self, key: Key) -> list[PeerLost]:
        peer = self._peers.pop(key, None)
        if peer is None:
            return []
        sender = identity(peer.hello)
        del self._keys[sender]
        self._parted.end(sender, peer.hello.session)
        return [PeerLost(*key)] if peer.answer is not None else []

    def _refuse(self, sender: bytes, detail: str) -> None:
        self.counts["refused"] += 1
        log.warning("refused a peer: %s", detail)
        self._post(sender, Refused(self._me.group, self._me.rank, detail))

    def _post(self, to: bytes, message: Hello | Refused | Numbered[Said] | Heard) -> bool:
        return post(self._inbox.socket, to, encode(message))
