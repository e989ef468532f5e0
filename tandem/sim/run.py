"""Random runs: a seed decides the cluster, its pace, the requests and when clients leave."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.requests import Reason, Sampling, Work, pages_for
from tandem.engine.fake import FakeEngine, reference_tokens
from tandem.engine.memory import PlainMemory
from tandem.engine.model import FAKE_CELL_BYTES, FAKE_EOS
from tandem.ports import Engine
from tandem.sim.client import Client
from tandem.sim.clock import stream
from tandem.sim.node import Pace
from tandem.sim.world import Cluster, World

LAYERS = 8
CONTEXT = 128
MOST_REQUESTS = 24
PAIR = ("p0", "d0")
LAST_TICK_US = 30_000_000
"""A run takes about a second or is bound to a short deadline: one that ticks later has waited for a 600 s deadline."""


class Stalled(Exception):
    """Requests ended only because their time was up."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run did, for progress and for comparing runs."""

    seed: int
    hash: str
    ticks: int
    requests: int
    aborted: int
    unsettled: int  # rooms that keep their pages, as nobody knows whether a failed write still lands


def simulate(seed: int, tell: Callable[[str], None] | None = None) -> Result:
    """Run one seed to the end. Raises with the name of what was broken. `tell` is given the run in words."""
    rng = stream(seed, "cluster")
    cluster = _cluster(rng)
    client = Client(_reference)
    world = World(seed, cluster, build_engine, client)
    world.tell = tell
    _load(world, stream(seed, "load"))
    _part(world, stream(seed, "partings"))
    world.run()
    client.check()
    world.check_at_rest()
    if world.busy_until_us > LAST_TICK_US:
        raise Stalled(f"the last tick was at {world.busy_until_us // 1000} ms")
    aborted = sum(answer.ended is Reason.CLIENT_GONE for answer in client.answers.values())
    return Result(seed, world.hash, world.ticks, len(client.answers), aborted, len(world.unsettled))


def build_engine(group: Group, rank: RankId, limits: Limits) -> Engine:
    """The fake engine of one stage."""
    layers = group.layers(rank)
    memory = PlainMemory(layers, limits.num_pages, limits.page_size * FAKE_CELL_BYTES)
    return FakeEngine(memory, page_size=limits.page_size, last=layers[1] == LAYERS, context=limits.context)


def _cluster(rng: random.Random) -> Cluster:
    prefill, decode = rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4, 8])
    page_size = rng.choice([1, 4, 16])
    limits = Limits(
        page_size=page_size,
        num_pages=pages_for(rng.choice([100, 200, 2000]), page_size),
        context=CONTEXT,
        chunked_prefill_size=rng.choice([4, 16, 128]),
        max_prefill_tokens=rng.choice([16, 64, 256]),
        async_depth=rng.choice([0, 1, 2]),
        max_rooms=rng.choice([1024, 1024, 4]),
    )
    groups = (
        Group(RoleName.PREFILL, "p0", _partition(rng, prefill)),
        Group(RoleName.DECODE, "d0", _partition(rng, decode)),
    )
    slow = rng.choice([1, 1, 20])
    pace = Pace(
        message_us=(5, 400 * slow),
        write_us=(20, 2_000 * slow),
        handshake_us=(0, rng.choice([3_000, 3_000, 200_000])),
        failing_writes=rng.choice([0.0, 0.0, 0.02]),
        unsettled_failures=rng.choice([0.0, 0.5]),
    )
    if pace.failing_writes and pace.unsettled_failures:  # what an unsettled write holds is never there for others
        limits = msgspec.structs.replace(limits, num_pages=pages_for(2 * MOST_REQUESTS * CONTEXT, page_size))
    return Cluster(groups, limits, pace)


def _partition(rng: random.Random, parts: int) -> tuple[int, ...]:
    if rng.random() < 0.5:
        return split_layers(LAYERS, parts)
    cuts = sorted(rng.sample(range(1, LAYERS), parts - 1))
    return tuple(high - low for low, high in zip([0, *cuts], [*cuts, LAYERS], strict=True))


def _load(world: World, rng: random.Random) -> None:
    """Requests in bursts or one by one; some clients leave, some requests come twice, or late to one group."""
    spread_us = rng.choice([0, 20_000, 200_000])
    for number in range(rng.choice([1, 8, MOST_REQUESTS])):
        work = _work(rng, number)
        at_us = rng.randint(0, spread_us)
        remaining_ms = rng.choice([600_000] * 9 + [rng.randint(0, 50)])
        late_us = {} if work.max_tokens == 1 else {rng.choice(["p0", "d0"]): rng.choice([0] * 4 + [50_000])}
        world.clock.at(at_us, partial(world.submit, work, "p0", "d0", remaining_ms, late_us))
        if rng.random() < 0.1:
            again_us = at_us + rng.choice([0, rng.randint(0, 100_000)])
            world.clock.at(again_us, partial(world.submit, work, "p0", "d0", remaining_ms))
        if rng.random() < 0.25:
            left_us = at_us + rng.choice([rng.randint(0, 2_000), rng.randint(0, 100_000)])
            world.clock.at(left_us, partial(world.cancel, work, _told(rng, work, late_us)))


def _part(world: World, rng: random.Random) -> None:
    """In some runs, pairs of ranks lose each other for a while."""
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        prefill, decode = (rng.choice([node for node in world.nodes if node.rank.place.group == name]) for name in PAIR)
        delays_us = rng.randint(0, 5_000), rng.randint(0, 5_000)
        parting = partial(world.part, prefill, decode, delays_us, rng.randint(5_000, 50_000))
        world.clock.at(rng.randint(0, 50_000), parting)


def _told(rng: random.Random, work: Work, late_us: dict[str, int]) -> tuple[str, ...]:
    """Which groups hear that the client left: one is enough, unless it is told before it has heard of the request."""
    if work.max_tokens == 1 or any(late_us.values()):
        return "p0", "d0"
    return rng.choice([("p0", "d0"), ("p0", "d0"), ("p0",), ("d0",)])


def _work(rng: random.Random, number: int) -> Work:
    prompt = tuple(rng.randint(32, 126) for _ in range(rng.choice([1, 5, rng.randint(1, 90)])))
    sampling = Sampling(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(32))
    stop_ids = (FAKE_EOS,) if rng.random() < 0.8 else ()
    room = Room(RequestId(number + 1), 1)
    return Work(room, prompt, rng.choice([1, 2, 8, 30]), stop_ids, sampling, None)


def _reference(work: Work) -> list[int]:
    return reference_tokens(work.prompt, work.max_tokens, work.stop_ids, layers=LAYERS, sampling=work.sampling)
