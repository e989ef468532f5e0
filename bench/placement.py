"""Cache-aware placement on 16 workers: prefix hits against a cache that never forgets, and how evenly work is spread.

Each worker has the real page pool, prefix tree and journal; the router's index, costs and policies are the real ones.
Only computing is modelled, in virtual time: so many tokens a second, one prompt after the other, at such a speed that
the workers would be busy for LOAD of the time if every prefix were found. Traces of Mooncake are read from the
directory that TANDEM_DATA names.
"""

import heapq
import os
import random
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec
import numpy as np

from bench.rows import Row, row
from router.index import Hashed, Index
from router.placement import Route, routes
from router.policies import POLICIES, Look, Policy
from router.underway import Underway
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.journal import Telling
from tandem.core.members import Member
from tandem.core.pages import PagePool
from tandem.core.prefixes import packed
from tandem.sim.trace import Arrival, read_trace

BENCH = "placement"
WORKERS = 16
PAGE = 16
PAGES = 49_152
"""Of one worker: 786,432 tokens, 96 GiB of KV for a model of eight billion parameters."""
BLOCK = 512
"""Tokens of one block in Mooncake's traces."""
LOAD = 0.7
DATA = "TANDEM_DATA"
TRACES = ("mooncake_conversation_500.jsonl", "mooncake_synthetic_500.jsonl")
NO_TRACE = f"no such trace: let {DATA} name the directory that has it"
LIMITS = Limits(page_size=PAGE, num_pages=PAGES, context=1 << 20)
EVEN = "only balancing"
"""Whoever looks at no cache: see `LeastWork`."""


@dataclass(frozen=True)
class Prompt:
    """One request of a trace, as the router and as a worker see it."""

    at_s: float
    hashed: Hashed
    tokens: bytes


@dataclass
class Worker:
    """Computes one prompt after the other, on the pages of a real pool."""

    head: Member
    pool: PagePool = field(default_factory=lambda: PagePool(PAGES, PAGE))
    queue: deque[tuple[Room, Prompt]] = field(default_factory=deque)
    computed: int = 0  # tokens
    hits: int = 0

    def __post_init__(self) -> None:
        self.telling = Telling(self.pool.keep_journal())

    def begin(self) -> int:
        """Take the next prompt's pages; returns the tokens that are to be computed."""
        room, prompt = self.queue[0]
        length = len(prompt.hashed)
        hit = self.pool.reuse(room, "", prompt.tokens, (length - 1) // PAGE)
        self.table = hit + self.pool.allocate(room, -(-length // PAGE) - len(hit))
        self.hits += len(hit) * PAGE
        self.computed += length - len(hit) * PAGE
        return length - len(hit) * PAGE

    def end(self) -> Room:
        """It is computed, and cached from now on."""
        room, prompt = self.queue.popleft()
        full = len(prompt.hashed) // PAGE
        self.pool.publish(room, "", prompt.tokens[: full * PAGE * 4], self.table[:full], leaving=True)
        self.pool.release(room)
        return room


@dataclass(frozen=True)
class Found:
    """What a policy made of a trace."""

    hit_ratio: float
    imbalance: float
    ttft_p50_s: float
    ttft_p90_s: float


class LeastWork:
    """Fits Policy: who was given the least to compute. It looks at no cache, so nobody balances better."""

    looks = True  # else what it is given to compute is not known

    def choose(self, able: Sequence[Route], look: Look) -> Route | None:
        """See Policy."""
        sight = look(able)
        return min(able, key=lambda route: sight.prefilling[route.names[0]].lately)


class Run:
    """One policy on one trace, in virtual time."""

    def __init__(self, prompts: Sequence[Prompt], policy: Policy, speed: float) -> None:
        heads = [_head(RoleName.PREFILL, f"p{number:02}") for number in range(WORKERS)]
        self.workers = {head.group.name: Worker(head) for head in heads}
        self._routes = routes([*heads, _head(RoleName.DECODE, "d0")])
        self._prompts = prompts
        self._policy = policy
        self._speed = speed
        self._underway = Underway(looks=policy.looks)
        self._ends: list[tuple[float, int, Worker]] = []
        self._order = count()
        self._began: dict[Room, float] = {}
        self._ttft_s: list[float] = []

    def found(self) -> Found:
        """Play it to the end."""
        for number, prompt in enumerate(self._prompts):
            self._until(prompt.at_s)
            self._arrive(Room(RequestId(number), 1), prompt)
        self._until(float("inf"))
        computed = [worker.computed for worker in self.workers.values()]
        hits = sum(worker.hits for worker in self.workers.values())
        tenths = statistics.quantiles(self._ttft_s, n=10)
        return Found(hits / (hits + sum(computed)), max(computed) / statistics.mean(computed), tenths[4], tenths[8])

    def _arrive(self, room: Room, prompt: Prompt) -> None:
        now = prompt.at_s
        route = self._policy.choose(self._routes, lambda some: self._underway.sight(some, prompt.hashed, {}, now))
        assert route is not None
        self._underway.sent(room, route.heads[:1], prompt.hashed, now)
        self._began[room] = now
        worker = self.workers[route.names[0]]
        worker.queue.append((room, prompt))
        if len(worker.queue) == 1:
            self._begin(worker, now)

    def _begin(self, worker: Worker, now: float) -> None:
        ends_at = now + worker.begin() / self._speed
        heapq.heappush(self._ends, (ends_at, next(self._order), worker))
        self._tell(worker)

    def _until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at_s, _, worker = heapq.heappop(self._ends)
            room = worker.end()
            self._tell(worker)
            self._underway.computed(room)
            self._underway.ended(room)
            self._ttft_s.append(at_s - self._began.pop(room))
            if worker.queue:
                self._begin(worker, at_s)

    def _tell(self, worker: Worker) -> None:
        """What the worker's journal says reaches the router at once."""
        known = self._underway.of(worker.head.group.name)
        worker.telling.heard(known.index.number)
        while (told := worker.telling.next()) is not None:
            worker.telling.told(told)
            known.index.on_cached(told)
            worker.telling.heard(told.number)


def _head(role: RoleName, name: str) -> Member:
    return Member(Group(role, name, (1,)), RankId(0), 1, 1, "", "f", "m", "", "", "", LIMITS)


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All traces. Equal seeds give equal figures, so nothing is repeated."""
    rows = compared("conversations", list(conversations(seed, 400 if quick else 4000)))
    for name in TRACES:
        path = Path(os.environ.get(DATA, "")) / name
        if quick or not os.environ.get(DATA) or not path.is_file():
            rows.append(msgspec.structs.replace(row(BENCH, name, 0, ""), reason=NO_TRACE))
        else:
            rows += compared(name.removesuffix(".jsonl"), [_prompt(arrival) for arrival in read_trace(path)])
    return rows


def compared(trace: str, prompts: Sequence[Prompt]) -> list[Row]:
    """Every policy on one trace."""
    most = limit(prompts)
    tokens = sum(len(prompt.hashed) for prompt in prompts)
    speed = tokens * (1 - most) / WORKERS / prompts[-1].at_s / LOAD
    found = {name: Run(prompts, make(), speed).found() for name, make in POLICIES.items()}
    even = Run(prompts, LeastWork(), speed).found()
    ours = found["cache_aware"]
    rows = [
        row(BENCH, f"{trace}: hit ratio", ours.hit_ratio, "", reference=("infinite cache", most), bar=">= 0.98"),
        row(
            BENCH,
            f"{trace}: imbalance",
            ours.imbalance,
            "max/mean",
            reference=(EVEN, even.imbalance),
            bar="<= 1.05",
        ),
    ]
    for name, other in found.items():
        if other is not ours:
            rows.append(
                row(BENCH, f"{trace}: hit ratio, {name}", other.hit_ratio, "", reference=("infinite cache", most))
            )
            rows.append(row(BENCH, f"{trace}: imbalance, {name}", other.imbalance, "max/mean"))
    robin = found["round_robin"]
    rows.append(row(BENCH, f"{trace}: TTFT p50", ours.ttft_p50_s, "s", reference=("round robin", robin.ttft_p50_s)))
    rows.append(row(BENCH, f"{trace}: TTFT p90", ours.ttft_p90_s, "s", reference=("round robin", robin.ttft_p90_s)))
    return rows


def limit(prompts: Sequence[Prompt]) -> float:
    """The hit ratio of one cache for all, of any size."""
    everything, hits = Index(), 0
    for prompt in prompts:
        pages = prompt.hashed.pages(PAGE)
        hits += min(everything.overlap(pages), (len(prompt.hashed) - 1) // PAGE) * PAGE
        everything.coming(pages)
    return hits / sum(len(prompt.hashed) for prompt in prompts)


# prompts


def _prompt(arrival: Arrival) -> Prompt:
    """Equal blocks are equal tokens, so prompts share what the trace says that they share."""
    ids = np.repeat(np.array(arrival.blocks, np.int64), BLOCK)[: arrival.prompt]
    return _of(arrival.at_us / 1e6, ids.tolist())


def _of(at_s: float, tokens: list[int]) -> Prompt:
    return Prompt(at_s, Hashed(tokens, ""), packed(tokens))


def conversations(seed: int, requests: int) -> Iterator[Prompt]:
    """Made up, of no service: people who talk, each on one of a few system prompts, and come back with what was said.

    Turns of one conversation are some half a minute apart, and there are a few new tokens in each.
    """
    draw = random.Random(seed)
    systems = [draw.choices(range(50_000), k=draw.randrange(256, 4096)) for _ in range(8)]
    due: list[tuple[float, int, list[int]]] = []
    order, begins_s = count(), 0.0
    for _ in range(requests):
        while not due or due[0][0] > begins_s:
            heapq.heappush(due, (begins_s, next(order), list(draw.choice(systems))))
            begins_s += draw.expovariate(4.0)
        at_s, _, said = heapq.heappop(due)
        said += draw.choices(range(50_000), k=round(draw.lognormvariate(5.5, 1)) + 1)
        yield _of(at_s, list(said))
        if draw.random() < 0.75 and len(said) < 32_768:
            said += draw.choices(range(50_000), k=draw.randrange(50, 500))  # the answer
            heapq.heappush(due, (at_s + draw.expovariate(1 / 30), next(order), said))
