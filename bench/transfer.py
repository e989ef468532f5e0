"""How fast each transport moves pages to another process, beside the least that the same bytes could cost.

Each write moves 32 MiB that lie elsewhere each time, so that nothing is in a cache because of the one before.
"""

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import NoReturn

import msgspec

from bench import isolation
from bench.apart import answer, apart, cpu_us, ordered
from bench.ends import MOONCAKE, SHM, End, FarEnd, Shape
from bench.movers import MEMCPY, PLAIN, RAW, Mover, movers
from bench.rows import Row, row
from kvtransfer.transports.blocks import Block
from tandem.core.ids import LayerId
from tandem.engine.memory import PageMemory

BENCH = "transfer"
KIB, MIB = 1 << 10, 1 << 20
BLOCK_BYTES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB)
WRITE_BYTES = 32 * MIB
POOL = Shape(1, 512 * MIB // (4 * KIB), 4 * KIB)
SHM_BAR, MOONCAKE_BAR = ">= 0.7", ">= 0.9"
SHM_BAR_FROM = 64 * KIB
"""Smaller blocks are the price of asking: shm has no bar there."""
TRIES = 3
"""Of each in each turn."""
CONTIGUOUS, SCATTERED = "contiguous", "scattered"


class Order(msgspec.Struct, frozen=True):
    """What the measuring process is to do."""

    turns: int
    seed: int


class Cost(msgspec.Struct, frozen=True):
    """Of one write, in microseconds; CPU time is that of both processes."""

    wall_us: float
    cpu_us: float


class Case(msgspec.Struct, frozen=True):
    """What a write cost, by who moved it."""

    layout: str
    block_bytes: int
    costs: dict[str, Cost]


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Raises CalledProcessError."""
    cases = apart("bench.transfer", Order(2 if quick else 11, seed), list[Case])
    return [found for case in cases for found in rows_of(case)] + isolation.measure(quick=quick)


def rows_of(case: Case) -> Iterator[Row]:
    """Both transports, each beside the least that its bytes could cost, and beside a socket."""
    title = f"{case.layout}, blocks of {size_of(case.block_bytes)}"
    shm_bar = SHM_BAR if case.block_bytes >= SHM_BAR_FROM else ""
    yield speed(case, title, SHM, MEMCPY, shm_bar)
    yield cpu(case, title, SHM, MEMCPY)
    yield speed(case, title, MOONCAKE, RAW, MOONCAKE_BAR)
    yield speed(case, title, MOONCAKE, PLAIN, "")
    yield cpu(case, title, MOONCAKE, RAW)


def speed(case: Case, title: str, name: str, reference: str, bar: str) -> Row:
    """Decimal gigabytes per second."""
    reached, possible = (WRITE_BYTES / case.costs[each].wall_us / 1000 for each in (name, reference))
    return row(BENCH, f"{name}, {title}", reached, "GB/s", reference=(reference, possible), bar=bar)


def cpu(case: Case, title: str, name: str, reference: str) -> Row:
    """What both processes compute for a mebibyte."""
    used, least = (case.costs[each].cpu_us * MIB / WRITE_BYTES for each in (name, reference))
    return row(BENCH, f"{name}, {title}: CPU", used, "us/MiB", reference=(reference, least))


def size_of(length: int) -> str:
    """In the largest unit."""
    return f"{length // MIB} MiB" if length >= MIB else f"{length // KIB} KiB"


# where the blocks of a write lie


def contiguous(rng: random.Random, block_bytes: int, pool_bytes: int = POOL.pages * POOL.block_bytes) -> list[Block]:
    """Neighbours at both ends."""
    count = WRITE_BYTES // block_bytes
    source, destination = (rng.randrange(pool_bytes // block_bytes - count + 1) * block_bytes for _ in range(2))
    return [(source + at, destination + at, block_bytes) for at in range(0, WRITE_BYTES, block_bytes)]


def scattered(rng: random.Random, block_bytes: int, pool_bytes: int = POOL.pages * POOL.block_bytes) -> list[Block]:
    """Anywhere at both ends, so that hardly any two can be joined."""
    count, places = WRITE_BYTES // block_bytes, range(0, pool_bytes, block_bytes)
    pairs = zip(rng.sample(places, count), rng.sample(places, count), strict=True)
    return [(source, destination, block_bytes) for source, destination in pairs]


LAYOUTS = {CONTIGUOUS: contiguous, SCATTERED: scattered}


# the measuring process


def main(order: Order) -> NoReturn:
    """Measure between this process and a second one."""
    rng = random.Random(order.seed)
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-transfer-"))
        far = FarEnd(run_dir, "far", POOL)
        stack.callback(far.close)
        near = End(run_dir, "near", POOL)
        copy = PageMemory((LayerId(0), LayerId(1)), POOL.pages, POOL.block_bytes, shared=True)
        copy.buffer[:] = near.memory.buffer
        ways = movers(near, copy, far.doors)
        cases = [
            Case(layout, block_bytes, costs(ways, layout, block_bytes, far.process.pid, order.turns, rng))
            for block_bytes in BLOCK_BYTES
            for layout in LAYOUTS
        ]
    answer(cases)


def costs(
    ways: Mapping[str, Mover], layout: str, block_bytes: int, far: int, turns: int, rng: random.Random
) -> dict[str, Cost]:
    """Each in turn, again and again, so that a drift of the machine hits all; the first turn warms up.

    The median over turns of the quickest within a turn: whatever else runs can only slow them down.
    """
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, mover in ways.items():
            tried = [timed(mover, LAYOUTS[layout](rng, block_bytes), far) for _ in range(TRIES)]
            if turn:
                found[name].append(min(tried, key=lambda cost: cost.wall_us))
    return {name: median(each) for name, each in found.items()}


def timed(mover: Mover, blocks: list[Block], far: int) -> Cost:
    """One write."""
    move = mover(blocks)
    before_us, start_ns = cpu_us(far), time.perf_counter_ns()
    own_ns = time.process_time_ns()
    move()
    wall_us = (time.perf_counter_ns() - start_ns) / 1000
    return Cost(wall_us, (time.process_time_ns() - own_ns) / 1000 + cpu_us(far) - before_us)


def median(found: list[Cost]) -> Cost:
    """Of each figure by itself."""
    return Cost(statistics.median(each.wall_us for each in found), statistics.median(each.cpu_us for each in found))


if __name__ == "__main__":
    main(ordered(Order))
