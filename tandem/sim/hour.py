"""A long run at the pace of a real service: many ranks, a trace of requests, and a rank that dies now and then."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.errors import ConfigError
from tandem.core.ids import RequestId, Room
from tandem.core.requests import Sampling, Work
from tandem.engine.model import FAKE_EOS
from tandem.sim.case import LAYERS
from tandem.sim.client import Client, WrongAnswer
from tandem.sim.clock import stream
from tandem.sim.faults import Fault, Swarm
from tandem.sim.run import Stalled, build_engine, content_of
from tandem.sim.trace import SECOND_US, Arrival, fitted, repeated
from tandem.sim.world import Cluster, Pace, World

CONTEXT = 512
TICK_US = 50_000
"""What a stage computes in one tick."""
CRASH_EVERY_US = 300 * SECOND_US
DOWN_US = 5 * SECOND_US
REST_S = 600
"""For what is open when the last request has come."""
HONEST = ("stop", "length", "group_lost", "no_prefill", "no_decode", "request_quarantined", "kv_transfer_failed")
"""How a request may end where ranks die; but only these faults happen here."""
LIMITS = Limits(
    page_size=16, num_pages=1024, context=CONTEXT, chunked_prefill_size=128, max_prefill_tokens=256, async_depth=1
)


@dataclass(frozen=True, slots=True)
class Passed:
    """What became of a run. `codes` counts answers by finish reason or error."""

    hash: str
    requests: int
    codes: dict[str, int]
    ticks: int
    crashes: int
    migrated: int


def groups_of(ranks: int) -> tuple[Group, ...]:
    """Pairs of groups with up to a rank for each layer. Raises ConfigError for ranks that are left over."""
    size = min(LAYERS, ranks // 2)
    if size < 1 or ranks % (2 * size):
        raise ConfigError(f"--ranks is {ranks}: give an even number up to {2 * LAYERS}, or so many times {2 * LAYERS}")
    partition, pairs = split_layers(LAYERS, size), range(ranks // (2 * size))
    roles = ((RoleName.PREFILL, "p"), (RoleName.DECODE, "d"))
    return tuple(Group(role, f"{letter}{number}", partition) for number in pairs for role, letter in roles)


class Service:
    """A world that a trace is played to."""

    def __init__(self, arrivals: Sequence[Arrival], ranks: int, seconds: int, seed: int) -> None:
        groups = groups_of(ranks)
        layer_us = TICK_US * groups[0].size // LAYERS
        pace = Pace(layer_us=(layer_us * 9 // 10, layer_us * 11 // 10))
        self.client = Client(content_of)
        self.world = World(
            seed, Cluster(groups, LIMITS, pace), build_engine, self.client, Swarm(seed, (Fault.CRASHES,))
        )
        self._seconds = seconds
        self._rng = stream(seed, "crashes")
        self._texts = stream(seed, "texts")
        self._coming = enumerate(repeated(fitted(arrivals, CONTEXT), seconds * SECOND_US), 1)
        self._answered = Counter[str]()

    def play(self, told: Callable[[int], None]) -> Passed:
        """`told` is given the seconds that have passed. Raises whatever is found to be wrong."""
        world = self.world
        self._next()
        for crash_us in range(CRASH_EVERY_US // 2, self._seconds * SECOND_US, CRASH_EVERY_US):
            world.clock.at(crash_us, self._crash)
        for second in range(self._seconds):
            world.run(until_us=second * SECOND_US)
            self._settle()
            told(second)
        world.swarm.heal()
        world.run(until_us=(self._seconds + REST_S) * SECOND_US)
        if waiting := self.client.waiting():
            raise Stalled(f"{len(waiting)} requests are not answered {REST_S} s after the last has come")
        world.run()
        self._settle()
        world.check_at_rest()
        requests = sum(self._answered.values())
        crashes = world.swarm.counts[Fault.CRASHES]
        migrated = world.router.dispatch.requests.migrated
        return Passed(world.hash, requests, dict(self._answered), len(world.ticks), crashes, migrated)

    def _next(self) -> None:
        """One after the other: an hour of requests is never in the queue."""
        number, arrival = next(self._coming, (0, None))
        if arrival is not None:
            self.world.clock.at(arrival.at_us, partial(self._arrive, number, arrival))

    def _arrive(self, number: int, arrival: Arrival) -> None:
        prompt = tuple(self._text(arrival))
        work = Work(Room(RequestId(number), 1), prompt, arrival.answer, (FAKE_EOS,), Sampling(), None)
        self.world.router.submit(work, (), retries=2)
        self._next()

    def _text(self, arrival: Arrival) -> Iterator[int]:
        """Prompts that begin with equal blocks begin alike; else each is its own."""
        if not arrival.blocks:
            yield from (self._texts.randint(32, 126) for _ in range(arrival.prompt))
            return
        ends = [arrival.prompt * number // len(arrival.blocks) for number in range(len(arrival.blocks) + 1)]
        for block, begin, end in zip(arrival.blocks, ends, ends[1:], strict=False):
            rng = random.Random(block)
            yield from (rng.randint(32, 126) for _ in range(end - begin))

    def _crash(self) -> None:
        self.world.epochs.crash(self._rng.choice(self.world.nodes), DOWN_US)

    def _settle(self) -> None:
        """Look at the answers that are complete, and keep only that they were right. Raises WrongAnswer."""
        for code in self.client.settle():
            if code not in HONEST:
                raise WrongAnswer(f"a request ended with {code}, for which it has no reason")
            self._answered[code] += 1
