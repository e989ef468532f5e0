"""The tick loop of one process: sockets and threads in, the pure Rank in the middle, effects out. It never blocks."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Protocol, assert_never

import zmq

from consensus.pulse import Pulse
from consensus.store_link import FollowerStore, PPConsensusStore
from kvtransfer.checksums import Verifying
from kvtransfer.peer_link import PeerLink
from kvtransfer.posting import Posting, Wrote
from tandem.core.effects import (
    BackUp,
    Compile,
    Drop,
    Effect,
    Fence,
    Forget,
    Launch,
    Observe,
    Post,
    Restore,
    SendHidden,
    SendNext,
    TellPeer,
    TellRouter,
    Verify,
)
from tandem.core.ends import EndKind
from tandem.core.events import BackedUp, Combined, Compiled, Event, Fenced, LayerRan, Ran, Started, Verified, Woke
from tandem.core.ids import RankId
from tandem.core.inputs import Control, Order
from tandem.core.messages import OnRing
from tandem.core.rank import Rank
from tandem.ports import HiddenOut
from tandem.runtime.compiling import Compiling
from tandem.runtime.compute import ComputeThread
from tandem.runtime.endings import EpochOver
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Inbox, encode, post
from tandem.runtime.payloads import Payloads
from tandem.runtime.record_file import RecordFile
from tandem.runtime.router_link import BEHIND_MS, RouterLink
from tandem.runtime.timeline import Timeline
from tandem.runtime.witness import now_us

HOUSEKEEPING_S = 1.0
"""Resends and silent routers are looked after this often; the longest the loop sleeps."""
HURRY_S = 0.05
"""The same while a peer could not be greeted yet, for want of a connection."""
UNHEARD_S = 5.0
"""A rank that was told to end, and waits so much longer than rank 0 should, ends the epoch itself."""


class Request(Protocol):
    """Something another thread wants from the tick loop, such as its state."""

    def answer(self, drive: "Drive") -> None:
        """Called on the tick loop's thread."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The engine's thread has seen something, at this time: microseconds since 1970."""

    at_us: int
    event: Started | LayerRan | Ran | BackedUp


Thrown = Computed | Wrote | Verified | Fenced | Combined | Compiled | Request


@dataclass(slots=True)
class Links:
    """The hands of one rank."""

    ring_in: Inbox[OnRing]
    ring_out: "zmq.Socket[bytes] | None"  # None: the ring has one rank
    payloads: Payloads | None  # None: rank 0
    hidden_out: HiddenOut | None
    routers: RouterLink | None  # rank 0
    peers: PeerLink
    store: PPConsensusStore
    posting: Posting
    verifying: Verifying
    compiling: Compiling
    inbox: ThreadInbox[Thrown]
    timeline: Timeline
    pulse: Pulse
    record: RecordFile | None = None  # without --record-dir
    transport: str = "none"  # what moves the KV
    degraded: str = ""  # in what way that is worse than it was asked to be


class Drive:
    """Feeds a rank until its epoch is over."""

    def __init__(self, rank: Rank, links: Links, compute: ComputeThread, drain_s: float) -> None:
        self.rank = rank
        self.links = links
        self._compute = compute
        self._drain_s = drain_s
        self._leaving: tuple[RankId, float] | None = None  # who was told to end, and when the others wait no longer
        self._started_s = time.monotonic()
        self._next_housekeeping_s = 0.0
        self._own = [links.inbox.fd, links.ring_in.socket]
        self._own += [links.payloads.link.socket] if links.payloads is not None else []
        self._own += [links.routers.socket] if links.routers is not None else []
        self.watch_peers()

    def watch_peers(self) -> None:
        """Poll the sockets that are open now: those to peers come and go."""
        self._poller = zmq.Poller()
        for socket in (*self._own, *self.links.peers.sockets()):
            self._poller.register(socket, zmq.POLLIN)

    def run(self, check: Callable[[], None]) -> NoReturn:
        """Until `check`, which is called in each round, or anything else raises: EpochOver or Divergence, if it is no
        bug of ours.
        """
        while True:
            self._poller.poll(self._patience_ms())
            check()
            self._housekeeping()
            for event in self._events():
                self.on(event)
            if (wake_ms := self.rank.wake_ms()) is not None and wake_ms <= self.now_ms():
                self.on(Woke())
            if self.links.routers is not None:
                self.links.routers.flush()
            if self.links.record is not None:
                self.links.record.take()
            self.links.pulse.move(self.rank.scheduler.tick, self.rank.awaiting() or "", time.monotonic())
            self._leave_in_time()

    def leave(self, rank: RankId) -> None:
        """A rank of the group was told to end: take nothing new, finish what is here, and then end the epoch.

        Rank 0 does that, and waits for `drain_s`; another rank only tells it, and is a little more patient.
        """
        if self._leaving is not None:
            return
        patience_s = self._drain_s
        if isinstance(self.links.store, FollowerStore):
            self.links.store.leave()
            patience_s += UNHEARD_S
        else:
            self.on(Control(Order.DRAIN))
        self._leaving = rank, time.monotonic() + patience_s

    def _leave_in_time(self) -> None:
        if self._leaving is None:
            return
        rank, until_s = self._leaving
        if self.rank.drained or time.monotonic() >= until_s:
            raise EpochOver(f"{self.rank.place.group} rank {rank} was told to end", EndKind.LEFT)

    @property
    def _name(self) -> str:
        place = self.rank.place
        return f"rank {place.rank} of {place.group}"

    def now_ms(self) -> int:
        """Milliseconds since this epoch began, by this process's clock."""
        return int((time.monotonic() - self._started_s) * 1000)

    def on(self, event: Event) -> None:
        """Feed the rank and carry out what comes of it."""
        if isinstance(event, Ran) and self.links.payloads is not None:
            self.links.payloads.done(event.tick)
        self.links.timeline.on_event(now_us(), event)
        for effect in self.rank.flow(event, self.now_ms()):
            self._do(effect)

    def _patience_ms(self) -> int:
        rest_ms = int((self._next_housekeeping_s - time.monotonic()) * 1000) + 1
        wake_ms = self.rank.wake_ms()
        if wake_ms is not None:
            rest_ms = min(rest_ms, wake_ms - self.now_ms() + 1)
        if self.links.routers is not None and self.links.routers.behind:
            rest_ms = min(rest_ms, BEHIND_MS)
        return max(0, rest_ms)

    # what comes in

    def _events(self) -> Iterator[Event]:
        """One round over all sources, the ring first: the next rank waits for its baton.

        What comes meanwhile makes the next poll return at once.
        """
        links = self.links
        while (message := links.ring_in.receive()) is not None:
            yield message
        if links.ring_in.malformed:
            raise EpochOver(f"{self._name} was sent a malformed message over the ring", EndKind.RING)
        yield from self._thrown()
        if links.payloads is not None:
            yield from links.payloads.receive()
        if links.routers is not None:
            yield from links.routers.receive(time.monotonic())
        yield from links.peers.receive()

    def _thrown(self) -> Iterator[Event]:
        timeline = self.links.timeline
        for item in self.links.inbox.take():
            match item:
                case Computed(at_us=at_us, event=event):
                    timeline.on_engine(at_us, event)
                    yield event
                case Wrote(moved=moved):
                    timeline.on_written(moved.ticket, item.taken_us, item.begun_us, item.ended_us)
                    yield moved
                case Combined() | Compiled() | Fenced() | Verified():
                    yield item
                case _:
                    item.answer(self)

    # what goes out

    def _do(self, effect: Effect) -> None:
        links = self.links
        match effect:
            case SendNext(message=message):
                if links.ring_out is None or not post(links.ring_out, encode(message)):
                    raise EpochOver(f"the rank after {self._name} does not take its messages", EndKind.RING)
            case SendHidden(header=header):
                assert links.hidden_out is not None
                links.hidden_out.send(encode(header), memoryview(self._compute.take_output(header.tick)))
            case Launch(plan=plan):
                links.timeline.tally.on_launch(now_us(), plan.tick)
                self._compute.submit(plan, links.payloads.take(plan.tick) if links.payloads is not None else None)
            case BackUp():
                self._compute.back_up(effect)
            case Restore():
                self._compute.restore(effect)
            case Compile():
                links.compiling.put(effect)
            case Observe(room=room, fact=fact):
                links.store[room] = fact
            case Forget(room=room):
                self._forget(effect)
            case Post():
                links.posting.post(effect)
            case Drop(room=room):
                links.posting.drop(room)
            case Verify():
                links.verifying.verify(effect)
            case Fence(group=group):
                links.peers.fence(group)
                links.posting.abandon(group)
            case TellRouter(message=told):
                assert links.routers is not None
                links.routers.tell(told)
            case TellPeer(group=group, rank=rank, message=said):
                links.peers.send(group, rank, said)
            case _:
                assert_never(effect)

    def _forget(self, effect: Forget) -> None:
        del self.links.store[effect.room]
        if self.links.routers is not None:
            self.links.routers.forget(effect.room)

    # once a second

    def _housekeeping(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_housekeeping_s:
            return
        self._next_housekeeping_s = now_s + (HURRY_S if self.links.peers.greeting else HOUSEKEEPING_S)
        self.links.peers.tick(now_s)
        if self.links.routers is not None:
            for cancel in self.links.routers.abandoned(now_s):
                self.on(cancel)
