"""How long a group takes from the last rank's observation, such as landed KV, to its application on all ranks.

Rank, Scheduler, store and polls are the real ones, in virtual time; the CPU time they need is measured on this machine.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.rows import Row, row
from bench.slot_votes import SlotVote
from bench.stages import HOP_US, Ring, Stage
from tandem.core.config import Group, Limits, RoleName, TransferConsensus
from tandem.core.effects import TellPeer, TellRouter
from tandem.core.events import PeerOpened
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.inputs import FirstToken, Submit
from tandem.core.messages import Commit, Grant, Hello, Region
from tandem.core.plan import Emitted, Plan
from tandem.core.requests import Sampling, Work

BENCH = "consensus"
STAGE_US = 5_000
"""A decode forward of one stage, such as 17 GB of weights read at 3.35 TB/s."""
CHUNK_US = 200_000
"""A prefill forward of one stage: a long chunk of a large model."""
PREFILL, DECODE = "p0", "d0"
PROMPT = 16
FOREVER = 100_000
"""Tokens of a request that keeps its slot busy."""
TRANSFER_US = (5_000, 40_000)
"""From the grants to the last rank's observation."""
WAYS: tuple[TransferConsensus, ...] = ("store", "ring")


@dataclass(frozen=True, slots=True)
class Sample:
    """One agreement: microseconds to rank 0's frame and to all ranks, ticks, and CPU microseconds of all ranks."""

    frame_us: int
    all_us: int
    ticks: int
    cpu_us: float


@dataclass(slots=True)
class Applied:
    """Where and when one room's first token, which waits for the KV, was let out."""

    at_us: dict[RankId, int] = field(default_factory=dict)
    tick: int = -1


class DecodeGroup:
    """A ring of decode ranks whose prefill group is played by hand."""

    def __init__(self, ranks: int, way: TransferConsensus, *, busy: bool, depth: int = 0) -> None:
        limits = Limits(num_pages=FOREVER, context=2 * FOREVER, async_depth=depth, transfer_consensus=way)
        group = Group(RoleName.DECODE, DECODE, (1,) * ranks)
        self.ring = Ring(group, limits, lambda plan, rank: STAGE_US, told=self._told, shown=self._shown)
        self.ranks = [RankId(rank) for rank in range(ranks)]
        self._granted: dict[Room, list[RankId]] = {}
        self._applied: dict[Room, Applied] = {}
        self._number = 0
        region = Region(0, LayerId(0), LayerId(ranks), 1, 1)
        for stage in self.ring.stages:
            stage.on(PeerOpened(Hello(PREFILL, RankId(0), 1, 1, "", "", "", region)))
        for _ in range(ranks + depth if busy else 0):
            self._keep_busy()

    def _told(self, stage: Stage, effect: TellRouter | TellPeer) -> None:
        if isinstance(effect.message, Grant):
            self._granted[effect.message.room].append(stage.rank.place.rank)

    def _shown(self, rank: RankId, plan: Plan) -> None:
        for note in plan.notes:
            if isinstance(note, Emitted) and note.index == 0:
                applied = self._applied[note.room]
                applied.at_us[rank] = self.ring.clock.now_us
                applied.tick = plan.tick

    def _keep_busy(self) -> None:
        room = self._granted_room(FOREVER)
        for rank in self.ranks:
            self._land(room, rank)
        self.ring.run(lambda: len(self._applied[room].at_us) == len(self.ranks))

    def _granted_room(self, max_tokens: int) -> Room:
        """A room that waits for nothing but its KV."""
        self._number += 1
        room = Room(RequestId(self._number), 1)
        self._granted[room], self._applied[room] = [], Applied()
        work = Work(room, (1,) * PROMPT, max_tokens, (), Sampling(), PREFILL)
        self.ring.leader.on(Submit(work, remaining_ms=10**9))
        self.ring.run(lambda: len(self._granted[room]) == len(self.ranks))
        self.ring.leader.on(FirstToken(room, 1))
        return room

    def _land(self, room: Room, rank: RankId) -> None:
        self.ring.stages[rank].on(Commit(room, LayerId(rank), 0, PROMPT))

    def sample(self, rng: random.Random) -> Sample:
        """All ranks but one have their KV; then, at some moment, that one has it, too."""
        ring, late = self.ring, rng.choice(self.ranks)
        room = self._granted_room(max_tokens=2)
        applied = self._applied[room]
        for rank in self.ranks:
            if rank != late:
                self._land(room, rank)
        observed_us = ring.clock.now_us + rng.randint(*TRANSFER_US)
        landed: list[None] = []
        ring.clock.at(observed_us, partial(landed.append, None))
        ring.run(lambda: bool(landed))
        before = ring.leader.rank.scheduler.tick
        start_ns = time.process_time_ns()
        self._land(room, late)
        ring.run(lambda: len(applied.at_us) == len(self.ranks))
        cpu_us = (time.process_time_ns() - start_ns) / 1000
        frame_us, all_us = applied.at_us[RankId(0)], max(applied.at_us.values())
        ring.run(lambda: not ring.leader.rank.scheduler.role.knows(room))
        return Sample(frame_us - observed_us, all_us - observed_us, applied.tick - before, cpu_us)


class PrefillGroup:
    """A ring of prefill ranks that is busy with a prompt without end, and whose decode group is played by hand."""

    def __init__(self, ranks: int) -> None:
        limits = Limits(
            num_pages=FOREVER, context=2 * FOREVER, chunked_prefill_size=PROMPT, max_prefill_tokens=2 * PROMPT
        )
        group = Group(RoleName.PREFILL, PREFILL, (1,) * ranks)
        self.ring = Ring(group, limits, lambda plan, rank: CHUNK_US, shown=self._shown)
        self.ranks = [RankId(rank) for rank in range(ranks)]
        self._began_us: dict[Room, dict[RankId, int]] = {}
        region = Region(0, LayerId(0), LayerId(ranks), 1, 1)
        for stage in self.ring.stages:
            stage.on(PeerOpened(Hello(DECODE, RankId(0), 1, 1, "", "", "", region)))
        self._submit(Room(RequestId(0), 1), FOREVER, None)

    def _shown(self, rank: RankId, plan: Plan) -> None:
        for planned in plan.rows:
            self._began_us.setdefault(planned.room, {}).setdefault(rank, self.ring.clock.now_us)

    def _submit(self, room: Room, prompt: int, peer: str | None) -> None:
        work = Work(room, (1,) * prompt, 2, (), Sampling(), peer)
        self.ring.leader.on(Submit(work, remaining_ms=10**9))

    def sample_us(self, number: int, rng: random.Random) -> int:
        """From the last rank's grant until every rank has planned the room's first chunk."""
        ring, late, room = self.ring, rng.choice(self.ranks), Room(RequestId(number), 1)
        grant = Grant("d0", room, RankId(0), 0, (PageId(0),))
        self._submit(room, PROMPT, DECODE)
        for rank in self.ranks:
            if rank != late:
                ring.stages[rank].on(grant)
        granted_us = ring.clock.now_us + rng.randint(CHUNK_US, 2 * CHUNK_US)
        ring.clock.at(granted_us, partial(ring.stages[late].on, grant))
        ring.run(lambda: len(self._began_us.get(room, ())) == len(self.ranks))
        return max(self._began_us[room].values()) - granted_us


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases."""
    count = 10 if quick else 100
    rows = [found for ranks in (2, 4, 8, 16) for found in _rows(ranks, count, seed)]
    return rows + admission_rows(16, count, seed)


def admission_rows(ranks: int, count: int, seed: int) -> list[Row]:
    """Scenario S16: a prompt whose grants are all in, among others whose chunks take 0.2 s."""
    rng = random.Random(seed)
    group = PrefillGroup(ranks)
    found = [group.sample_us(number, rng) for number in range(1, count + 1)]
    step_us = CHUNK_US + HOP_US
    vote = ("two-pass vote", two_pass_us(SlotVote(ranks, step_us), count, rng))
    case = f"P = {ranks}, prefill, store: granted to planned"
    limit = ("1 tick + P hops", step_us + ranks * HOP_US)
    return [
        row(BENCH, f"{case}, worst", max(found), "us", reference=limit, bar="<= 1.0"),
        row(BENCH, case, statistics.mean(found), "us", reference=vote, bar=f"<= {1 / ranks}"),
    ]


def _rows(ranks: int, count: int, seed: int) -> Iterator[Row]:
    rng = random.Random(seed)
    step_us = STAGE_US + HOP_US  # also the time between two ticks of a decode group all of whose stages are busy
    vote_us = two_pass_us(SlotVote(ranks, step_us), count, rng)
    bar = f"<= {1 / ranks}"
    for depth in (0, 1):
        found = samples(DecodeGroup(ranks, "store", busy=True, depth=depth), count, rng)
        yield from busy_rows(f"P = {ranks}, d = {depth}, store", found, ("two-pass vote", vote_us), bar)
        worst = max(sample.frame_us for sample in found)
        limit = ("1 tick + 1 hop", step_us + HOP_US)
        yield row(
            BENCH, f"P = {ranks}, d = {depth}, store: worst, to frame", worst, "us", reference=limit, bar="<= 1.0"
        )
    found = samples(DecodeGroup(ranks, "ring", busy=True), count, rng)
    yield from busy_rows(f"P = {ranks}, d = 0, ring", found, ("two-pass vote", vote_us), "")
    yield from idle_rows(ranks, count, rng)


def busy_rows(title: str, found: Sequence[Sample], reference: tuple[str, float], bar: str) -> Iterator[Row]:
    """Every slot runs a request."""
    mean = statistics.mean(sample.all_us for sample in found)
    yield row(BENCH, f"{title}: to all ranks", mean, "us", reference=reference, bar=bar)
    yield row(BENCH, f"{title}: ticks", statistics.mean(sample.ticks for sample in found), "ticks")


def idle_rows(ranks: int, count: int, rng: random.Random) -> Iterator[Row]:
    """Nothing runs. No agreement can be faster than its hops, so there is no bar against the emulation."""
    vote = ("two-pass vote", two_pass_us(SlotVote(ranks, HOP_US), count, rng))
    for way, found in zip(WAYS, interleaved(ranks, count, rng), strict=True):
        title = f"P = {ranks}, idle, {way}"
        if way == "store":
            worst = max(sample.all_us for sample in found)
            limit = ("P hops", ranks * HOP_US)
            yield row(BENCH, f"{title}: worst, to all ranks", worst, "us", reference=limit, bar="<= 1.0")
        yield row(
            BENCH, f"{title}: to all ranks", statistics.mean(sample.all_us for sample in found), "us", reference=vote
        )
        cpu_us = statistics.median(sample.cpu_us for sample in found) / ranks
        yield row(BENCH, f"{title}: CPU of a rank", cpu_us, "us")


def samples(group: DecodeGroup, count: int, rng: random.Random) -> list[Sample]:
    """So many agreements, one after the other."""
    return [group.sample(rng) for _ in range(count)]


def interleaved(ranks: int, count: int, rng: random.Random) -> tuple[list[Sample], ...]:
    """Both ways in turn, in idle groups: what is measured of the CPU is measured of both at the same time."""
    groups = [DecodeGroup(ranks, way, busy=False) for way in WAYS]
    rounds = [[group.sample(rng) for group in groups] for _ in range(count)]
    return tuple([found[index] for found in rounds] for index in range(len(groups)))


def two_pass_us(vote: SlotVote, count: int, rng: random.Random) -> float:
    """The emulation's mean, over the same choice of ranks and moments."""
    latencies = []
    for _ in range(10 * count):
        observed_us = rng.randint(10, 20) * vote.ranks * vote.step_us + rng.randrange(vote.step_us)
        latencies.append(vote.applied_us(rng.randrange(vote.ranks), observed_us) - observed_us)
    return statistics.mean(latencies)
