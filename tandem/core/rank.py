"""One rank of a ring, without its sockets, threads and clock: events in, effects out.

Everything local lives here and in the courier. The scheduler sees frames only. On rank 0 a Leader turns what comes in
into frames; every other rank takes them from batons.
"""

from collections import deque
from dataclasses import dataclass

from consensus.leader import Leader, conclusions
from consensus.ring import fold, unanimous
from tandem.core.effects import Effect, Forget, Launch, SendHidden, SendNext, TellPeer, TellRouter
from tandem.core.errors import Divergence
from tandem.core.events import Combined, Event, Ran, Started
from tandem.core.ids import Epoch, RankId, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Frame, Harvest, Kind, Outcome, Submit
from tandem.core.messages import BallotBack, Baton, Cancel, Cancelled, Done, Fact, Hidden, Quiet, Return, Token
from tandem.core.plan import Emitted, Ended, Forgotten, HandedOff, Note, Opened, Plan, Settled, ToldPeer
from tandem.core.role import Courier
from tandem.core.scheduler import Scheduler

Tokens = tuple[tuple[Room, tuple[int, ...]], ...]
LEADER = RankId(0)
FLIGHT_RECORD = 256
"""Frames kept, with the digest each led to, for the dump when the ring stops."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands in its ring, in which incarnation of its group."""

    group: str
    rank: RankId
    size: int
    epoch: Epoch

    @property
    def first(self) -> bool:
        """Builds the frames, talks to routers."""
        return self.rank == LEADER

    @property
    def last(self) -> bool:
        """Samples."""
        return self.rank == self.size - 1


class Rank:
    """The ring protocol of one rank. `on` never blocks and never fails for a peer's fault; it raises Divergence."""

    def __init__(self, place: Place, scheduler: Scheduler, courier: Courier) -> None:
        self.place = place
        self.scheduler = scheduler
        self.courier = courier
        self.stale = 0  # messages of another epoch, dropped
        self._leader = Leader(scheduler.role.kinds) if place.first else None
        self._facts: dict[Room, Fact] = {}  # rank 0: the group's facts, also of rooms that are not here yet
        self._stepped: deque[Plan] = deque()  # plans with rows that wait for their hidden states
        self._hidden: deque[Hidden] = deque()  # headers that came before their plan
        self._launched: dict[Tick, Plan] = {}
        self._returns: dict[Tick, tuple[int, Tokens | None]] = {}  # last rank: (digest, tokens; None: not sampled yet)
        self._digests: dict[Tick, int] = {}  # rank 0: of ticks whose return is out
        self._unstarted: Tick | None = None  # rank 0: launched here, but this stage has not begun it
        self._slot = Slot(0)
        self._out: list[Effect] = []
        self.flight_record: deque[tuple[Frame, int]] = deque(maxlen=FLIGHT_RECORD)

    def on(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event. `now_ms` is this process's clock; only rank 0 uses it."""
        self._take(event)
        self._out += self.courier.on_event(event)
        if self._leader is not None:
            self._open_ticks(self._leader, now_ms)
        out, self._out = self._out, []
        return out

    def wake_ms(self) -> int | None:
        """When to send Woke if nothing else happens. Only rank 0 has timers, and only while it may tick."""
        may_tick = self.place.first and self._unstarted is None
        return self.scheduler.wake_ms if may_tick else None

    def awaiting(self) -> str | None:
        """The ring message this rank cannot go on without, for the stall verdict and for people."""
        if self._stepped and not self.place.first:
            return f"hidden({self._stepped[0].tick})"
        if self._digests:
            return f"return({next(iter(self._digests))})"
        return None

    # what comes in

    def _take(self, event: Event) -> None:
        match event:
            case Baton() | Hidden() | Return() | BallotBack():
                self._on_ring(event)
            case Started(tick=tick):
                self._started(tick)
            case Ran(tick=tick, tokens=tokens):
                self._ran(tick, tokens)
            case _:
                if self._leader is not None:
                    self._gather(self._leader, event)

    def _on_ring(self, message: Baton | Hidden | Return | BallotBack) -> None:
        if message.epoch != self.place.epoch:
            self.stale += 1
            return
        match message:
            case Baton(frame=frame, ballot=ballot):
                self._step(frame, ballot)
            case Hidden():
                self._hidden.append(message)
                self._launch()
            case Return():
                self._returned(message)
            case BallotBack(tick=tick, yes=yes):
                self._balloted(tick, yes)

    def _gather(self, leader: Leader, event: Event) -> None:
        """Rank 0: what is said to the group, and what its facts entail."""
        match event:
            case Submit() | FirstToken():
                leader.arrive(event)
            case Cancel(room=room, reason=reason):
                leader.arrive(Abort(room, reason))
            case Cancelled(group=group, room=room, reason=reason):
                leader.arrive(Abort(room, reason, group))
            case Quiet(room=room):
                if self.scheduler.role.knows(room):
                    leader.conclude(room, Kind.QUIET)
            case Combined(room=room, fact=fact):
                self._combined(leader, room, fact)
            case _:
                pass

    def _combined(self, leader: Leader, room: Room, fact: Fact | None) -> None:
        if fact is None:
            self._facts.pop(room, None)
            return
        self._facts[room] = fact
        if self.scheduler.role.knows(room):
            for kind in conclusions(fact):
                leader.conclude(room, kind)

    # one tick

    def _open_ticks(self, leader: Leader, now_ms: int) -> None:
        """Rank 0 opens ticks while there is something to do and its own stage has begun the last one.

        Waiting for the stage lets newcomers join as late as possible.
        """
        while self._unstarted is None:
            slot, can_run = self.scheduler.role.next_slot(self._slot, self.scheduler.flights, leader.returned)
            tick = Tick(self.scheduler.tick + 1)
            wake_ms = self.scheduler.wake_ms
            due = wake_ms is not None and wake_ms <= now_ms
            questions = len(self.scheduler.votes.on_baton(tick))
            if not (can_run or due or questions or leader.waiting):
                return
            if slot >= 0:
                self._slot = slot
            self._step(leader.take(tick, slot, now_ms), unanimous(questions) if questions else None)

    def _step(self, frame: Frame, ballot: int | None) -> None:
        """Vote, pass the baton on, and only then step: the next rank need not wait for this one's CPU."""
        self._vote_and_pass(frame, ballot)
        plan = self.scheduler.step(frame)
        self.flight_record.append((frame, plan.digest))
        self._out += self.courier.on_plan(plan)
        self._report(plan.notes)
        if plan.rows:
            self._stepped.append(plan)
            if self.place.first:
                self._digests[plan.tick] = plan.digest
                self._unstarted = plan.tick
            self._launch()

    def _vote_and_pass(self, frame: Frame, ballot: int | None) -> None:
        asks = self.scheduler.votes.on_baton(frame.tick)
        if (ballot is None) == bool(asks):
            raise Divergence(f"baton {frame.tick} carries ballot {ballot}, but the open questions are {asks}")
        if ballot is not None:
            ballot = fold(ballot, [self.courier.answer(ask) for ask in asks])
        if not self.place.last:
            self._out.append(SendNext(Baton(self.place.epoch, frame, ballot)))
        elif ballot is not None:
            self._send_leader(BallotBack(self.place.epoch, frame.tick, ballot))

    def _launch(self) -> None:
        """Launch the plans whose hidden states are here, in tick order, after comparing digests."""
        while self._stepped and (self.place.first or self._hidden):
            plan = self._stepped.popleft()
            if not self.place.first:
                self._compare(plan, self._hidden.popleft())
            self._launched[plan.tick] = plan
            self._out.append(Launch(plan))
            if self.place.last:
                self._returns[plan.tick] = (plan.digest, None)

    def _compare(self, plan: Plan, header: Hidden) -> None:
        """Nothing is launched on a plan that the rank before does not share."""
        mine = (plan.tick, plan.tokens, plan.digest)
        theirs = (header.tick, header.rows, header.digest)
        if mine != theirs:
            raise Divergence(f"rank {self.place.rank} plans (tick, rows, digest) {mine}, hidden states are of {theirs}")

    def _started(self, tick: Tick) -> None:
        """This stage has begun a tick. One that samples nothing returns only now: so the window bounds what waits."""
        if self._unstarted is not None and tick >= self._unstarted:
            self._unstarted = None
        if self.place.last and not self._launched[tick].samples:
            self._returns[tick] = (self._launched[tick].digest, ())
            self._send_returns()

    def _ran(self, tick: Tick, tokens: Tokens) -> None:
        plan = self._launched.pop(tick)
        if not self.place.last:
            self._out.append(SendHidden(Hidden(self.place.epoch, tick, plan.tokens, plan.digest)))
        elif plan.samples:
            self._returns[tick] = (plan.digest, tokens)
            self._send_returns()

    # what goes back to rank 0

    def _send_returns(self) -> None:
        """Returns leave in tick order, each when it is ready."""
        for tick, (digest, tokens) in list(self._returns.items()):
            if tokens is None:
                return
            del self._returns[tick]
            self._send_leader(Return(self.place.epoch, tick, digest, tokens))

    def _send_leader(self, message: Return | BallotBack) -> None:
        if not self.place.first:
            self._out.append(SendNext(message))
        elif isinstance(message, Return):
            self._returned(message)
        else:
            self._balloted(message.tick, message.yes)

    def _returned(self, message: Return) -> None:
        """Rank 0 compares digests before a harvest enters a frame."""
        assert self._leader is not None
        expected = next(iter(self._digests.items()), None)
        if expected != (message.tick, message.digest):
            raise Divergence(f"return of (tick, digest) {(message.tick, message.digest)}, rank 0 expects {expected}")
        del self._digests[message.tick]
        self._leader.harvest(Harvest(message.tick, message.tokens))

    def _balloted(self, tick: Tick, yes: int) -> None:
        assert self._leader is not None
        self._leader.ballot(Outcome(tick, yes))

    # what the plan says to others

    def _report(self, notes: tuple[Note, ...]) -> None:
        """Every rank forgets; rank 0 speaks for the group."""
        for note in notes:
            if self._leader is not None:
                self._speak(self._leader, note)
            if isinstance(note, Forgotten):
                self._out.append(Forget(note.room))

    def _speak(self, leader: Leader, note: Note) -> None:
        match note:
            case Opened(room=room):
                self._combined(leader, room, self._facts.get(room))
            case Emitted(room=room, index=index, token=token):
                self._out.append(TellRouter(Token(room, index, token)))
            case Ended(room=room, reason=reason):
                self._out.append(TellRouter(Done(room, reason)))
            case HandedOff(room=room, peer=peer, token=token):
                self._out.append(TellPeer(peer, LEADER, FirstToken(room, token)))
            case ToldPeer(room=room, peer=peer, reason=reason):
                self._out.append(TellPeer(peer, LEADER, Cancelled(self.place.group, room, reason)))
            case Settled(room=room, peer=peer):
                self._out.append(TellPeer(peer, LEADER, Quiet(room)))
            case Forgotten(room=room):
                leader.forget(room)
            case _:
                pass
