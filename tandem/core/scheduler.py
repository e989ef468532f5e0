"""The replicated scheduler: the same frames give the same plans on every rank."""

from consensus.ring import OpenVotes
from tandem.core.digest import advance
from tandem.core.errors import Divergence
from tandem.core.ids import Tick
from tandem.core.inputs import Abort, Arrival, FirstToken, Frame, Harvest, Submit
from tandem.core.plan import Ask, Forgotten, Note, Plan, Row
from tandem.core.recent import Recent
from tandem.core.role import Role
from tandem.core.slots import Flights


class Scheduler:
    """Knows no rank, no clock and no socket. The role it is given decides what prefill and decode do differently."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.flights = Flights()
        self.votes = OpenVotes()
        self.tick = Tick(-1)  # the last tick stepped
        self.digest = 0
        self.wake_ms: int | None = None  # when time alone will change something; known after each step
        self._ended = Recent()

    def step(self, frame: Frame) -> Plan:
        """Apply one frame. Raises Divergence for a frame that is not the next one."""
        if frame.tick != self.tick + 1:
            raise Divergence(f"frame of tick {frame.tick} after tick {self.tick}")
        self.tick = frame.tick
        notes = self._apply(frame)
        asks = tuple(self.role.admit(frame.now_ms))
        self.votes.open(Tick(frame.tick + 1), asks)
        rows = self.role.plan(frame.slot)
        if rows:
            self.flights.launch(frame.tick, frame.slot, rows)
        self.role.pool.check()
        self.digest = self._digest(frame, rows, asks)
        self.wake_ms = self.role.wake_ms()
        return Plan(frame.tick, frame.slot, tuple(rows), asks, tuple(notes), self.digest)

    def _apply(self, frame: Frame) -> list[Note]:
        """The fixed order: what has happened comes before what is asked for."""
        notes: list[Note] = []
        for harvest in frame.harvests:
            notes += self._on_harvest(harvest)
        for outcome in frame.ballots:
            for ask, yes in self.votes.close(outcome):
                notes += self.role.on_outcome(ask, yes, frame.now_ms)
        for verdict in frame.verdicts:
            if self.role.knows(verdict.room):
                notes += self.role.on_verdict(verdict)
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
        tokens = dict(harvest.tokens)
        notes: list[Note] = []
        for row in rows:
            notes += self.role.on_tokens(row, tokens.get(row.room, ()))
        return notes

    def _on_arrival(self, arrival: Arrival, now_ms: int) -> list[Note]:
        match arrival:
            case Submit(work=work):
                if work.room in self._ended:
                    return [Forgotten(work.room)]  # its driver has just noted a way to a router again
                return [] if self.role.knows(work.room) else self.role.on_submit(arrival, now_ms)
            case FirstToken(room=room):
                return self.role.on_first_token(arrival) if self.role.knows(room) else []
            case Abort():
                return self.role.on_abort(arrival)

    def _remember(self, notes: list[Note]) -> None:
        for note in notes:
            if isinstance(note, Forgotten):
                self._ended.add(note.room)

    def _digest(self, frame: Frame, rows: list[Row], asks: tuple[Ask, ...]) -> int:
        pool = self.role.pool
        counts = (pool.free, len(self.flights), len(self.votes), *self.role.lengths())
        return advance(self.digest, frame, rows, asks, pool.drain_given(), counts)
