"""How much of a transfer remains once the last layer has been computed, and what it costs the first token.

A process computes layers and writes each as soon as it is there, through the production Posting and transport. What is
exposed is the time from the end of the last layer's computing to the last commit, which is sent when its write ends.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import msgspec
import numpy as np

from bench import first_token
from bench.apart import answer, apart, ordered
from bench.ends import KINDS, End, FarEnd, Shape
from bench.rows import Row, row
from bench.way import Way

BENCH = "overlap"
EXPOSED_BAR = "<= 1.2"
POOL = Shape(16, 128, 1 << 16)
"""Of Llama-3-8B in 16 bits, pages of 16 tokens; 16 of its layers."""
PAGES = [(page, POOL.pages - 1 - page) for page in range(64)]
"""A prompt of 1,024 tokens, 4 MiB per layer, that cannot be coalesced."""
COMPUTES = (0.5, 1.0, 2.0, 8.0)
"""Time to compute a layer, in times to write it."""
HIDES_FROM = 2.0
"""Both together take longer than each alone: they share the memory, and here the cores."""
MATRIX = 128
CONNECT_S = 10.0
STREAMED, AT_END, LAST_ALONE = "as computed", "at the end", "the last layer alone"


class Order(msgspec.Struct, frozen=True):
    """What the measuring process is to do."""

    kind: str
    turns: int


class Run(msgspec.Struct, frozen=True):
    """Microseconds from the first layer's begin to the last commit, and how much of that was exposed."""

    total_us: float
    exposed_us: float


class Found(msgspec.Struct, frozen=True):
    """Medians, by when layers are posted, at one ratio of computing to writing."""

    compute: float
    runs: dict[str, Run]


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Raises CalledProcessError, ClusterFailed or ConnectionError."""
    turns = 2 if quick else 11
    found = [(kind, each) for kind in KINDS for each in apart("bench.overlap", Order(kind, turns), list[Found])]
    rows = [each for kind, one in found for each in rows_of(kind, one)]
    return rows + first_token.measure(quick=quick, seed=seed)


def rows_of(kind: str, found: Found) -> Iterator[Row]:
    """Against the last group alone, which nobody can hide, and against a transfer at the end."""
    title = f"{kind}, computing a layer {found.compute:g} x writing it"
    streamed, at_end, alone = (found.runs[when] for when in (STREAMED, AT_END, LAST_ALONE))
    bar = EXPOSED_BAR if found.compute >= HIDES_FROM else ""
    exposed = row(
        BENCH, f"{title}: exposed", streamed.exposed_us, "us", reference=(LAST_ALONE, alone.exposed_us), bar=bar
    )
    yield exposed if bar else msgspec.structs.replace(exposed, reason="no bar: computing is too short to hide it")
    yield row(BENCH, f"{title}: exposed", streamed.exposed_us, "us", reference=(AT_END, at_end.exposed_us))
    yield row(BENCH, f"{title}: to the last commit", streamed.total_us, "us", reference=(AT_END, at_end.total_us))


# the measuring process


class Layers:
    """Computes one layer after the other and posts it, sooner or later or not at all."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._matrix = np.ones((MATRIX, MATRIX), np.float32) / MATRIX

    def compute(self, products: int) -> None:
        """So many products of matrices, on one core, without the GIL: as an engine does it."""
        for _ in range(products):
            self._matrix = self._matrix @ self._matrix

    def run(self, when: str, products: int) -> Run:
        """All layers. Raises ConnectionError unless all that was posted has landed."""
        layers = range(POOL.layers)
        posted = layers[-1:] if when == LAST_ALONE else layers
        start_s = time.perf_counter()
        for layer in layers:
            self.compute(products)
            if layer == layers[-1]:
                computed_s = time.perf_counter()
            if when == STREAMED:
                self._way.post(layer, PAGES)
        if when != STREAMED:
            for layer in posted:
                self._way.post(layer, PAGES)
        self._way.wait(len(posted))
        ended_s = time.perf_counter()
        return Run((ended_s - start_s) * 1e6, (ended_s - computed_s) * 1e6)

    def products_per_write(self) -> float:
        """How many products take as long as writing one layer."""
        write_us = typical_us(partial(self._way.write, 0, PAGES))
        return write_us / typical_us(partial(self.compute, 100)) * 100


def typical_us(action: Callable[[], None]) -> float:
    """The median of many."""
    found = []
    for _ in range(21):
        start_ns = time.perf_counter_ns()
        action()
        found.append((time.perf_counter_ns() - start_ns) / 1000)
    return statistics.median(found)


def main(order: Order) -> NoReturn:
    """All ratios of computing to writing."""
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-overlap-"))
        far = FarEnd(run_dir, "d0", POOL)
        stack.callback(far.close)
        near = End(run_dir, "p0", POOL)
        way = Way(near, near.open(order.kind), far.doors.hellos[order.kind])
        way.connect(CONNECT_S)
        layers = Layers(way)
        per_write = layers.products_per_write()
        found = [Found(compute, runs(layers, round(compute * per_write), order.turns)) for compute in COMPUTES]
    answer(found)


def runs(layers: Layers, products: int, turns: int) -> dict[str, Run]:
    """Medians of each, in turn, so that a drift of the machine hits all of them; the first turn warms up."""
    found: dict[str, list[Run]] = {STREAMED: [], AT_END: [], LAST_ALONE: []}
    for turn in range(turns + 1):
        for when, each in found.items():
            run = layers.run(when, products)
            if turn:
                each.append(run)
    return {when: median(each) for when, each in found.items()}


def median(found: list[Run]) -> Run:
    """Of each figure by itself."""
    return Run(statistics.median(each.total_us for each in found), statistics.median(each.exposed_us for each in found))


if __name__ == "__main__":
    main(ordered(Order))
