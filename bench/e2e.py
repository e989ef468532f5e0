"""A real cluster on this machine against the one-process engine, and what the cluster costs while it is idle."""

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from bench.client import Client, Timing
from bench.cluster import Cluster
from bench.rows import Row, row
from bench.solo import Solo
from tandem.engine.model import bundled_model_path, read_shape
from tandem.local.wanted import served_name

BENCH = "e2e"
CLUSTER = "cluster"
SHORT = 16
"""Tokens of the prompt where only the way to the first token counts."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repeats: int
    prompt: int  # tokens, where prefill counts
    output: int  # tokens, where decode counts
    idle_cpu_s: float
    idle_s: float


FULL = Size(repeats=5, prompt=1024, output=64, idle_cpu_s=30.0, idle_s=10.0)
QUICK = Size(repeats=2, prompt=128, output=16, idle_cpu_s=5.0, idle_s=2.0)

Side = Callable[[list[int], int], Timing]
"""Runs a prompt to exactly so many tokens."""


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases, on the bundled model. Raises ClusterFailed or ConnectionError when the cluster does not answer."""
    size = QUICK if quick else FULL
    model = str(bundled_model_path())
    vocab = read_shape(model).vocab
    rng = random.Random(seed)
    most_tokens = max(size.prompt, SHORT + size.output) + 1
    with contextlib.ExitStack() as stack:
        solos = [Solo(model, threads, most_tokens) for threads in sorted({1, len(os.sched_getaffinity(0))})]
        for solo in solos:
            stack.callback(solo.close)
        cluster = stack.enter_context(Cluster())
        stack.enter_context(Console(stderr=True).status("measuring"))
        client = Client(cluster.url, served_name(model))
        sides: dict[str, Side] = {solo.name: solo.complete for solo in solos}
        rows = compare({**sides, CLUSTER: client.complete}, size, rng, vocab)
        return [*rows, idle_cpu(cluster, size), idle_wake(client, size, rng, vocab)]


def compare(sides: Mapping[str, Side], size: Size, rng: random.Random, vocab: int) -> list[Row]:
    """Each side in turn, again and again, so that a drift of the machine hits all of them; the first round warms up."""
    figures: dict[tuple[str, str], list[float]] = {}
    for turn in range(size.repeats + 1):
        for name, complete in sides.items():
            long = complete(tokens(rng, vocab, size.prompt), 1)
            short = complete(tokens(rng, vocab, SHORT), size.output)
            if turn:
                figures.setdefault(("prefill", name), []).append(size.prompt / long.first_s)
                figures.setdefault(("decode", name), []).append(short.decode_tok_s)
                figures.setdefault(("ttft", name), []).append(short.first_s * 1000)
    median = {key: statistics.median(values) for key, values in figures.items()}
    rows = []
    for case, title, unit, best in (
        ("prefill", f"prefill of {size.prompt}", "tok/s", max),
        ("decode", "decode, 1 stream", "tok/s", max),
        ("ttft", f"first token of {SHORT}", "ms", min),
    ):
        value, name = best((median[case, name], name) for name in sides if name != CLUSTER)
        rows.append(row(BENCH, title, median[case, CLUSTER], unit, reference=(name, value)))
    return rows


def idle_cpu(cluster: Cluster, size: Size) -> Row:
    """Cores that all processes of the cluster use while nothing is asked of them."""
    pids = family(cluster.process.pid)
    before_s, start_s = sum(map(cpu_s, pids)), time.monotonic()
    time.sleep(size.idle_cpu_s)
    used_s, passed_s = sum(map(cpu_s, pids)) - before_s, time.monotonic() - start_s
    return row(BENCH, "idle_cpu", used_s / passed_s, "cores", bar="< 0.02")


def idle_wake(client: Client, size: Size, rng: random.Random, vocab: int) -> Row:
    """What idleness adds to the time to the first token, against requests back to back."""
    rested, busy = [], []
    for _ in range(size.repeats):
        client.complete(tokens(rng, vocab, SHORT), 1)
        busy.append(client.complete(tokens(rng, vocab, SHORT), 1).first_s * 1000)
        time.sleep(size.idle_s)
        rested.append(client.complete(tokens(rng, vocab, SHORT), 1).first_s * 1000)
    added_ms = statistics.median(rested) - statistics.median(busy)
    found = row(BENCH, "idle_wake", added_ms, "ms", bar="<= 20 ms")
    return msgspec.structs.replace(found, reference="back to back", reference_value=statistics.median(busy))


def tokens(rng: random.Random, vocab: int, count: int) -> list[int]:
    """A prompt that no cache knows."""
    return [rng.randrange(3, vocab) for _ in range(count)]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def cpu_s(pid: int) -> float:
    """utime + stime, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
