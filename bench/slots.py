"""A decode group that packs few requests into one batch, against one that spreads them over its slots."""

import contextlib
import random
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.console import Console

from bench.client import Client
from bench.cluster import Cluster
from bench.rows import Row, row
from bench.streams import made_up
from tandem.core.config import SLOT_ROWS
from tandem.engine.model import bundled_model_path, read_shape
from tandem.local.wanted import served_name

BENCH = "slots"
PROMPT = 16
PACKED, SPREAD = "packed", "spread"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repeats: int
    output: int  # tokens of each stream
    streams: tuple[int, ...]


FULL = Size(repeats=5, output=64, streams=(1, 8, 32))
QUICK = Size(repeats=1, output=16, streams=(1, 8))


def measure(*, quick: bool, seed: int) -> list[Row]:
    """Tokens per second of all streams together, on two clusters that differ in `--slot-rows`. Raises ClusterFailed."""
    size = QUICK if quick else FULL
    model = str(bundled_model_path())
    vocab, rng = read_shape(model).vocab, random.Random(seed)
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, slot_rows in ((SPREAD, 1), (PACKED, SLOT_ROWS)):
            shape = ("--prefill-pp=1", "--decode-pp=2", "--threads=1")
            cluster = stack.enter_context(Cluster(*shape, f"--slot-rows={slot_rows}"))
            sides[name] = Client(cluster.url, served_name(model))
        stack.enter_context(Console(stderr=True).status("measuring"))
        return compare(sides, size, rng, vocab)


def compare(sides: Mapping[str, Client], size: Size, rng: random.Random, vocab: int) -> list[Row]:
    """Each side in turn, again and again, so that a drift of the machine hits both; the first round warms up."""
    figures: dict[tuple[str, int], list[float]] = {}
    for turn in range(size.repeats + 1):
        for streams in size.streams:
            for name, client in sides.items():
                rate = together(client, [made_up(rng, vocab, PROMPT) for _ in range(streams)], size.output)
                if turn:
                    figures.setdefault((name, streams), []).append(rate)
    median = {key: statistics.median(values) for key, values in figures.items()}
    return [
        row(
            BENCH,
            f"decode, {streams} stream{'s' if streams > 1 else ''}",
            median[PACKED, streams],
            "tok/s",
            reference=(SPREAD, median[SPREAD, streams]),
        )
        for streams in size.streams
    ]


def together(client: Client, prompts: list[list[int]], output: int) -> float:
    """Tokens per second while all prompts are answered at once."""
    start_s = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        for answer in [pool.submit(client.complete, prompt, output) for prompt in prompts]:
            answer.result()
    return len(prompts) * output / (time.perf_counter() - start_s)
