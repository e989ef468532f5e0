"""One rank of a ring, without its sockets, threads and clock: events in, effects out.

Everything local lives here, in the head that rank 0 has besides, and in the courier. The scheduler sees frames only.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from consensus.facts import BOTTOM, join, without_transfer
from consensus.polls import CONCLUDES, answer
from consensus.ring import fold
from tandem.core.config import Limits
from tandem.core.effects import Compile, Effect, Forget, Launch, Observe, SendHidden, SendNext
from tandem.core.errors import Divergence
from tandem.core.events import Event, Ran, Started
from tandem.core.head import Head
from tandem.core.ids import LEADER, Epoch, RankId, Room, Tick
from tandem.core.inputs import Frame
from tandem.core.messages import BallotBack, Baton, Fact, Hidden, Return
from tandem.core.plan import Ask, Forgotten, Plan, Uncompiled
from tandem.core.recorder import Recorder
from tandem.core.role import Courier
from tandem.core.scheduler import Scheduler
from tandem.core.tuning import ChunkTuner


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

    def __init__(
        self, place: Place, scheduler: Scheduler, courier: Courier, limits: Limits, tuner: ChunkTuner | None = None
    ) -> None:
        """Only rank 0 uses the tuner."""
        self.place = place
        self.scheduler = scheduler
        self.courier = courier
        self.stale = 0  # messages of another epoch, dropped
        self.recorder = Recorder()
        self._head = Head(place.group, scheduler, tuner) if place.first else None
        self._stepped: deque[Plan] = deque()  # plans with rows that wait for their hidden states
        self._hidden: deque[Hidden] = deque()  # headers that came before their plan
        self._launched: dict[Tick, Plan] = {}
        self._returns: dict[Tick, Return | None] = {}  # last rank: None: not sampled yet
        self._facts: dict[Room, Fact] = {}  # what this rank has observed
        self._polls = limits.transfer_consensus == "ring"
        self._out: list[Effect] = []

    def on(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event. `now_ms` is this process's clock; only rank 0 uses it."""
        return list(self.flow(event, now_ms))

    def flow(self, event: Event, now_ms: int) -> Iterator[Effect]:
        """The same, each effect as soon as it is known: a baton leaves before this rank steps. Take all of them."""
        if isinstance(event, Baton) and self._is_current(event):
            yield from self._tick(event.frame, event.ballot)
        else:
            self._take(event)
        self._observe(self.courier.on_event(event))
        if self._head is not None:
            self._head.gather(event, now_ms)
            while (opened := self._head.open(now_ms)) is not None:
                yield from self._tick(*opened)
        yield from self._drain()

    def _drain(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def wake_ms(self) -> int | None:
        """When to send Woke if nothing else happens. Only rank 0 has timers, and only while it may tick."""
        return self.scheduler.wake_ms if self._head is not None and self._head.may_tick else None

    def awaiting(self) -> str | None:
        """What this rank cannot go on without: its own forward first, else a ring message. For people and the dump."""
        if self._launched:
            return f"ran({next(iter(self._launched))})"
        if self._stepped:
            return f"hidden({self._stepped[0].tick})"
        return self._head.awaiting() if self._head is not None else None

    @property
    def drained(self) -> bool:
        """Rank 0: the group takes nothing new, and has finished all that it had."""
        return self._head is not None and self._head.drained

    @property
    def untold(self) -> int:
        """Rank 0: log-probabilities whose token is not told yet."""
        return len(self._head.untold) if self._head is not None else 0

    def in_hand(self) -> list[Plan]:
        """Plans whose forward has not ended, or not begun for want of hidden states: for the dump."""
        return [*self._launched.values(), *self._stepped]

    @property
    def facts(self) -> Mapping[Room, Fact]:
        """What this rank has observed: for the dump."""
        return self._facts

    def _observe(self, effects: list[Effect]) -> None:
        """Keep what the courier has observed; under ring consensus only the votes hear of the transfer itself."""
        for effect in effects:
            if not isinstance(effect, Observe):
                self._out.append(effect)
                continue
            known = self._facts.get(effect.room, BOTTOM)
            fact = self._facts[effect.room] = join(known, effect.fact)
            if not self._polls:
                self._out.append(effect)
            elif (said := without_transfer(fact)) != without_transfer(known):
                self._out.append(Observe(effect.room, said))

    # what comes in

    def _is_current(self, message: Baton | Hidden | Return | BallotBack) -> bool:
        """Of this epoch; others are dropped and counted."""
        current = message.epoch == self.place.epoch
        self.stale += not current
        return current

    def _take(self, event: Event) -> None:
        match event:
            case Hidden() | Return() | BallotBack() if self._is_current(event):
                self._on_ring(event)
            case Started(tick=tick):
                self._started(tick)
            case Ran():
                self._ran(event)
            case _:
                pass

    def _on_ring(self, message: Hidden | Return | BallotBack) -> None:
        match message:
            case Hidden():
                self._hidden.append(message)
                self._launch()
            case _ if self._head is None:
                raise Divergence(f"rank {self.place.rank} was sent {message}, which is for rank 0")
            case _:
                self._to_head(message)

    # one tick

    def _tick(self, frame: Frame, ballot: int | None) -> Iterator[Effect]:
        """Vote, pass the baton on, and only then step: the next rank need not wait for this one's CPU."""
        self.recorder.take(frame)
        self._vote_and_pass(frame, ballot)
        yield from self._drain()
        self._step(frame)

    def _step(self, frame: Frame) -> None:
        plan = self.scheduler.step(frame)
        self.recorder.led_to(plan.digest)
        self._observe(self.courier.on_plan(plan))
        self._report(plan)
        if plan.rows:
            self._stepped.append(plan)
            if self._head is not None:
                self._head.launched(plan)
            self._launch()

    def _vote_and_pass(self, frame: Frame, ballot: int | None) -> None:
        asks = self.scheduler.votes.on_baton(frame.tick)
        if (ballot is None) == bool(asks):
            raise Divergence(f"baton {frame.tick} carries ballot {ballot}, but the open questions are {asks}")
        if ballot is not None:
            ballot = fold(ballot, [self._answer(ask) for ask in asks])
        if not self.place.last:
            self._out.append(SendNext(Baton(self.place.epoch, frame, ballot)))
        elif ballot is not None:
            self._to_head(BallotBack(self.place.epoch, frame.tick, ballot))

    def _answer(self, ask: Ask) -> bool:
        """This rank's vote: a poll is about what it has observed, all else is the courier's."""
        if ask.question in CONCLUDES:
            return answer(ask.question, self._facts.get(ask.room, BOTTOM))
        return self.courier.answer(ask)

    def _report(self, plan: Plan) -> None:
        """Rank 0 speaks for the group; who decides and who draws compile grammars; every rank forgets what has gone."""
        for note in plan.notes:
            if self._head is not None:
                self._out += self._head.speak(note)
            if type(note) is Uncompiled and (self.place.first or self.place.last):
                self._out.append(Compile(note.room, note.grammar))
            if type(note) is Forgotten:
                self._facts.pop(note.room, None)
                self._out.append(Forget(note.room))

    def _launch(self) -> None:
        """Launch the plans whose hidden states are here, in tick order, after comparing digests."""
        while self._stepped and (self.place.first or self._hidden):
            plan = self._stepped.popleft()
            if not self.place.first:
                self._compare(plan, self._hidden.popleft())
            self._launched[plan.tick] = plan
            self._out.append(Launch(plan))
            if self.place.last:
                self._returns[plan.tick] = None

    def _compare(self, plan: Plan, header: Hidden) -> None:
        """Nothing is launched on a plan that the rank before does not share."""
        mine = (plan.tick, plan.tokens, plan.digest)
        theirs = (header.tick, header.rows, header.digest)
        if mine != theirs:
            raise Divergence(f"rank {self.place.rank} plans (tick, rows, digest) {mine}, hidden states are of {theirs}")

    def _started(self, tick: Tick) -> None:
        """This stage has begun a tick. One that samples nothing returns only now: so the window bounds what waits."""
        if self._head is not None:
            self._head.started(tick)
        if self.place.last and not self._launched[tick].samples:
            self._returns[tick] = Return(self.place.epoch, tick, self._launched[tick].digest, ())
            self._send_returns()

    def _ran(self, ran: Ran) -> None:
        plan = self._launched.pop(ran.tick)
        if not self.place.last:
            self._out.append(SendHidden(Hidden(self.place.epoch, ran.tick, plan.tokens, plan.digest)))
        elif plan.samples:
            self._returns[ran.tick] = Return(self.place.epoch, ran.tick, plan.digest, ran.tokens, ran.logprobs)
            self._send_returns()

    # what goes back to rank 0

    def _send_returns(self) -> None:
        """Returns leave in tick order, each when it is ready."""
        for tick, message in list(self._returns.items()):
            if message is None:
                return
            del self._returns[tick]
            self._to_head(message)

    def _to_head(self, message: Return | BallotBack) -> None:
        """From the last rank to rank 0; in a ring of one they are the same."""
        match self._head, message:
            case None, _:
                self._out.append(SendNext(message))
            case head, Return():
                head.returned(message)
            case head, BallotBack(tick=tick, yes=yes):
                head.balloted(tick, yes)
