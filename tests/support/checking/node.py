"""One rank with its column of the store and its engine: an event in, and everything that leaves the rank out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from checking.frozen import Count, freeze

from consensus.store import Column, Table
from tandem.assembly import build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import (
    BackUp,
    Compile,
    Effect,
    Forget,
    Launch,
    Observe,
    Post,
    Restore,
    SendHidden,
    SendNext,
    TellPeer,
    TellRouter,
)
from tandem.core.errors import Divergence
from tandem.core.events import BackedUp, Combined, Event, LayerRan, Ran, Started
from tandem.core.ids import Epoch, LayerId, PageId, RankId, Room, Tick
from tandem.core.inputs import Frame, Verdict
from tandem.core.messages import Ack, BallotBack, Baton, Facts, Hidden, Return
from tandem.core.plan import Ask, Plan, Row
from tandem.core.rank import Rank
from tandem.core.recorder import Recorder
from tandem.sim.oracle import StrayAccess

EPOCH = Epoch(1)
TOKEN = 65
"""What every forward samples: which token it is concerns nobody here."""

Job = Plan | BackUp | Restore
"""What the engine does, one after the other."""
OverRing = tuple[Baton | Return | BallotBack, int | None]
"""A ring message; with a baton, the digest that its sender has of its tick."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of one event."""

    happened: tuple[tuple[Event, tuple[Effect, ...]], ...] = ()
    ring: tuple[OverRing, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    facts: Facts | None = None
    ack: Ack | None = None  # for the sender of the facts that were taken
    told: tuple[Effect, ...] = ()  # for the world: posts, and what is said to routers and peers
    verdicts: tuple[Verdict, ...] = ()  # rank 0: those that its frames carry
    forgotten: tuple[Room, ...] = ()
    plain: bool = False  # a baton that changed the replicated state only, and whose passing on depends on nothing else


class Record(Recorder):
    """In place of the flight record: what was stepped in the event that is taken now, as it is."""

    def __init__(self) -> None:
        self.stepped: list[tuple[Frame, int]] = []
        self._frame: Frame | None = None

    def take(self, frame: Frame) -> None:
        """See Recorder."""
        self._frame = frame

    def led_to(self, digest: int) -> None:
        """See Recorder."""
        assert self._frame is not None
        self.stepped.append((self._frame, digest))
        self._frame = None


class Node:
    """Carries out a rank's effects as far as they concern this rank alone."""

    def __init__(self, group: Group, rank: RankId, limits: Limits) -> None:
        self.rank: Rank = build_rank(group, rank, EPOCH, limits)
        self.rank.scheduler.tick = Tick(Count(0))
        self.rank.recorder = self.record = Record()
        self.column = Column(EPOCH, rank)
        self.table = Table(EPOCH, group.size) if self.rank.place.first else None
        self.engine: list[Job] = []  # launched, the first one being done
        self.phase = 0  # steps of it that are done
        self.saved: dict[PageId, Room] = {}  # whose KV the pages of host memory hold
        self.layers = group.layers(rank)
        self.layerwise = group.role is not RoleName.DECODE  # the end of each layer is a step of its own

    def on(self, event: Event, now_ms: int) -> Taken:
        """Feed one event."""
        return self._taken([event], now_ms)

    def on_ring(self, message: OverRing, now_ms: int) -> Taken:
        """Feed a ring message. Raises Divergence if this rank steps a tick otherwise than the one before it."""
        event, digest = message
        local = freeze(self.rank.courier)
        taken = self._taken([event], now_ms, expected=digest)
        passed = all(isinstance(effect, SendNext) for _, effects in taken.happened for effect in effects)
        voted = isinstance(event, Baton) and event.ballot is not None
        launched = bool(self.rank._stepped)
        plain = passed and not voted and not launched and taken.facts is None and freeze(self.rank.courier) == local
        return replace(taken, plain=plain)

    def on_facts(self, facts: Facts, now_ms: int) -> Taken:
        """Rank 0: merge a column, and hear of what the group now knows."""
        assert self.table is not None
        touched, ack = self.table.on(facts)
        return self._taken([Combined(room, self.table.combined(room)) for room in touched], now_ms, ack=ack)

    def on_ack(self, ack: Ack, now_ms: int) -> Taken:
        """Rank 0 has our facts."""
        self.column.on_ack(ack, now_ms)
        return Taken()

    def on_timer(self, now_ms: int) -> Taken:
        """The store looks whether an acknowledgement is overdue."""
        return self._taken([], now_ms)

    def compute(self, now_ms: int) -> Taken:
        """The engine's next step."""
        return self._taken(list(self._next_step()), now_ms)

    def _next_step(self) -> Iterator[Event]:
        job = self.engine[0]
        if isinstance(job, Plan):
            yield from self._forward(job)
            return
        del self.engine[0]
        if isinstance(job, BackUp):
            self.saved |= dict.fromkeys(job.host_pages, job.room)
            yield BackedUp(job.room)
        elif strays := [page for page in job.host_pages if self.saved.get(page) != job.room]:
            raise StrayAccess(f"host pages {strays} are copied back for {job.room}, but hold something else")

    def _forward(self, plan: Plan) -> Iterator[Event]:
        done, self.phase = self.phase, self.phase + 1
        if not done:
            yield Started(plan.tick)
            return
        layers = [LayerId(layer) for layer in range(*self.layers)]
        if self.layerwise and done <= len(layers):
            yield LayerRan(plan.tick, layers[done - 1])
            return
        if not self.layerwise:
            yield from (LayerRan(plan.tick, layer) for layer in layers)
        self.phase = 0
        del self.engine[0]
        sampled = tuple((row.room, (TOKEN,)) for row in plan.rows if row.samples) if self.rank.place.last else ()
        yield Ran(plan.tick, sampled)

    def _taken(
        self, events: Sequence[Event], now_ms: int, ack: Ack | None = None, expected: int | None = None
    ) -> Taken:
        happened = tuple((event, tuple(self.rank.on(event, now_ms))) for event in events)
        effects = [effect for _, caused in happened for effect in caused]
        for effect in effects:
            self._keep(effect)
        record = self._drain_record()
        digests = {frame.tick: digest for frame, digest in record}
        if expected is not None and [expected] != list(digests.values()):
            raise Divergence(f"digests of {list(digests)} are {list(digests.values())}, the rank before has {expected}")
        return Taken(
            happened,
            tuple(_over_ring(effect, digests) for effect in effects if isinstance(effect, SendNext)),
            tuple(effect.header for effect in effects if isinstance(effect, SendHidden)),
            self.column.flush(now_ms),
            ack,
            tuple(effect for effect in effects if self._concerns_the_world(effect)),
            tuple(verdict for frame, _ in record for verdict in frame.verdicts) if self.rank.place.first else (),
            tuple(effect.room for effect in effects if isinstance(effect, Forget)),
        )

    def _concerns_the_world(self, effect: Effect) -> bool:
        """What the last rank compiles is for itself."""
        told = isinstance(effect, Post | TellRouter | TellPeer)
        return told or (self.rank.place.first and isinstance(effect, Compile))

    def _keep(self, effect: Effect) -> None:
        match effect:
            case Launch(plan=plan):
                self.engine.append(plan)
            case BackUp() | Restore():
                self.engine.append(effect)
            case Observe(room=room, fact=fact):
                self.column.set(room, fact)
            case Forget(room=room):
                self.column.delete(room)
                self.saved = {page: whose for page, whose in self.saved.items() if whose != room}
            case _:
                pass

    def _drain_record(self) -> list[tuple[Frame, int]]:
        """What was stepped in this event. Neither the record nor the last digest is read by any decision."""
        stepped, self.record.stepped = self.record.stepped, []
        self.rank.scheduler.digest = 0
        return stepped


def _over_ring(effect: SendNext, digests: dict[Tick, int]) -> OverRing:
    message = effect.message
    return message, digests[message.frame.tick] if isinstance(message, Baton) else None


def digest_of_tick(
    digest: int,
    frame: Frame,
    rows: Sequence[Row],
    asks: Sequence[Ask],
    given: Sequence[PageId],
    counts: Sequence[int],
) -> int:
    """In place of the rolling digest: equal for equal ticks, whatever came before, so that paths can meet again."""
    del digest
    inputs = (frame.slot, frame.now_ms, frame.arrivals, frame.verdicts)
    back = tuple((frame.tick - harvest.tick, harvest.tokens) for harvest in frame.harvests)
    votes = tuple((frame.tick - outcome.tick, outcome.yes) for outcome in frame.ballots)
    return _DIGESTS.setdefault((inputs, back, votes, tuple(rows), tuple(asks), tuple(given), counts), len(_DIGESTS))


_DIGESTS: dict[tuple[object, ...], int] = {}
