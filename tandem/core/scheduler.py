"""The replicated scheduler: the same frames give the same plans on every rank."""

from collections.abc import Sequence

from consensus.polls import CONCLUDES, Polls
from consensus.ring import OpenVotes
from tandem.core.config import Limits
from tandem.core.controls import Controls
from tandem.core.digest import advance
from tandem.core.errors import Divergence
from tandem.core.ids import Room, Tick
from tandem.core.inputs import (
    Abort,
    Arrival,
    Control,
    FirstToken,
    Frame,
    Harvest,
    Knobs,
    Order,
    Outcome,
    Submit,
    Verdict,
)
from tandem.core.plan import MAX_ASKS, Ask, CutOff, Forgotten, Note, Plan, Row
from tandem.core.recent import Recent
from tandem.core.requests import Reason
from tandem.core.role import NOTHING, Decision, Role
from tandem.core.slots import Flights


class Scheduler:
    """Knows no rank, no clock and no socket. The role it is given decides what prefill and decode do differently."""

    def __init__(self, role: Role, controls: Controls, limits: Limits) -> None:
        self.role = role
        self.controls = controls
        self.flights = Flights()
        self.votes = OpenVotes()
        self.tick = Tick(-1)  # the last tick stepped
        self.digest = 0
        self.wake_ms: int | None = None  # when time alone will change something; known after each step
        self._limits = limits
        self._polls = Polls() if limits.transfer_consensus == "ring" else None
        self._ended = Recent()

    def step(self, frame: Frame) -> Plan:
        """Apply one frame. Raises Divergence for a frame that is not the next one."""
        if frame.tick != self.tick + 1:
            raise Divergence(f"frame of tick {frame.tick} after tick {self.tick}")
        self.tick = frame.tick
        notes = self._apply(frame)
        decision = NOTHING if self.controls.paused else self.role.decide(frame.slot, frame.now_ms)
        self._remember(decision.notes)
        asks = self._ask(decision, frame.now_ms)
        rows = tuple(decision.rows)
        if rows:
            self.flights.launch(frame.tick, frame.slot, rows)
        self.role.pool.check()
        self.digest = self._digest(frame, rows, asks)
        self.wake_ms = self._wake_ms()
        return Plan(frame.tick, frame.slot, rows, asks, (*notes, *decision.notes), self.digest)

    # what the frame brings

    def _apply(self, frame: Frame) -> list[Note]:
        """The fixed order: what has happened comes before what is asked for."""
        notes: list[Note] = []
        for harvest in frame.harvests:
            notes += self._on_harvest(harvest)
        for outcome in frame.ballots:
            notes += self._on_ballot(outcome, frame.now_ms)
        for verdict in frame.verdicts:
            notes += self._on_verdict(verdict)
        self._remember(notes)
        for arrival in frame.arrivals:
            heard = self._on_arrival(arrival, frame.now_ms)
            self._remember(heard)  # at once: the next arrival may be about the same room
            notes += heard
        expired = self.role.expire(frame.now_ms)
        self._remember(expired)
        return notes + expired

    def _on_harvest(self, harvest: Harvest) -> list[Note]:
        rows = self.flights.land(harvest.tick)
        sampled = [row.room for row in rows if row.samples]
        if sampled != [room for room, _ in harvest.tokens]:
            raise Divergence(f"harvest of tick {harvest.tick} names other rooms than its plan")
        tokens = iter(harvest.tokens)
        notes: list[Note] = []
        for row in rows:
            notes += self.role.on_tokens(row, next(tokens)[1] if row.samples else ())
        return notes

    def _on_ballot(self, outcome: Outcome, now_ms: int) -> list[Note]:
        notes: list[Note] = []
        for ask, yes in self.votes.close(outcome):
            if self._polls is None or ask.question not in CONCLUDES:
                notes += self.role.on_outcome(ask, yes, now_ms)
            elif (verdict := self._polls.close(ask, yes)) is not None:
                notes += self._on_verdict(verdict)
        return notes

    def _on_verdict(self, verdict: Verdict) -> list[Note]:
        return self.role.on_verdict(verdict) if self.role.knows(verdict.room) else []

    def _on_arrival(self, arrival: Arrival, now_ms: int) -> list[Note]:
        match arrival:
            case Submit():
                return self._on_submit(arrival, now_ms)
            case FirstToken(room=room):
                return self.role.on_first_token(arrival) if self.role.knows(room) else []
            case Abort():
                return self.role.on_abort(arrival)
            case Control():
                return self._on_control(arrival)
            case Knobs():
                self.controls.on_knobs(arrival)
                return []

    def _on_control(self, control: Control) -> list[Note]:
        self.controls.on_control(control)
        if control.order is Order.FLUSH:
            self.role.pool.flush()
        return [CutOff(control.peer)] if control.order is Order.RELEASE else []

    def _on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        room = submit.work.room
        if room in self._ended:
            return [Forgotten(room)]  # its driver has just noted a way to a router again
        if self.role.knows(room):
            return []
        refusal = self._refusal(room)
        return self.role.on_submit(submit, now_ms) if refusal is None else self.role.refuse(submit.work, refusal)

    def _refusal(self, room: Room) -> Reason | None:
        """Who comes back is let in where a new request is not: its client may have a part of its answer."""
        back = self._comes_back(room)
        if self.controls.draining and not back:
            return Reason.DRAINING
        rooms = self.role.lengths()[0]
        most = self._limits.most_rooms if back else self._limits.max_rooms
        return Reason.QUEUE_FULL if rooms >= most else None

    def _comes_back(self, room: Room) -> bool:
        """Whether an earlier attempt was given up: here, elsewhere, or before this group had heard of it."""
        return room.attempt > 1

    def _remember(self, notes: Sequence[Note]) -> None:
        for note in notes:
            if type(note) is Forgotten:
                self._ended.add(note.room)

    # what the step leads to

    def _ask(self, decision: Decision, now_ms: int) -> tuple[Ask, ...]:
        """The role's questions, and polls in what is left of the ballot."""
        asks = tuple(decision.asks)
        if self._polls is not None:
            asks += tuple(self._polls.due(self.role.polls(), MAX_ASKS - len(asks), now_ms))
        self.votes.open(Tick(self.tick + 1), asks)
        return asks

    def _wake_ms(self) -> int | None:
        times = [self.role.wake_ms()]
        if self._polls is not None:
            times.append(self._polls.wake_ms())
        return min((time for time in times if time is not None), default=None)

    def _digest(self, frame: Frame, rows: Sequence[Row], asks: Sequence[Ask]) -> int:
        pool = self.role.pool
        counts = (pool.free, len(self.flights), len(self.votes), *self.role.lengths())
        return advance(self.digest, frame, rows, asks, pool.drain_given(), counts)
