"""Time to the first token of a prefill and a decode group against one colocated group, on the real model.

The client has the first token from the prefill group, but decode pages are found before a prompt is computed, and
layers are written meanwhile. The second token comes from the decode group: what is exposed of the transfer delays it.
"""

import contextlib
import random
import statistics
from collections.abc import Mapping

from rich.console import Console

from bench.client import Client, Timing
from bench.cluster import Cluster
from bench.rows import Row, row
from bench.streams import made_up
from tandem.engine.model import bundled_model_path, read_shape
from tandem.local.wanted import served_name

BENCH = "overlap"
BAR = "<= 1.05"
COLOCATED = "colocated"
SEPARATE = ("--prefill-pp=1", "--decode-pp=1")
CLUSTERS = {
    COLOCATED: ("--colocated", "--pp=1"),
    "mooncake": SEPARATE,
    "shm": (*SEPARATE, "--disaggregation-transfer-backend=shm"),
}
THREADS = 1
"""Of every engine. The second core is then there for what moves the KV."""
PROMPT = 1000


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Raises ClusterFailed, or ConnectionError when a cluster does not answer."""
    prompt, repeats = (128, 2) if quick else (PROMPT, 9)
    model = str(bundled_model_path())
    vocab, rng = read_shape(model).vocab, random.Random(seed)
    found: dict[str, list[Timing]] = {name: [] for name in CLUSTERS}
    with contextlib.ExitStack() as stack:
        clients = {name: client(stack, served_name(model), flags) for name, flags in CLUSTERS.items()}
        stack.enter_context(Console(stderr=True).status("measuring"))
        for turn in range(repeats + 1):
            for name, each in clients.items():
                timing = each.complete(made_up(rng, vocab, prompt), 2)
                if turn:
                    found[name].append(timing)
    return rows_of(prompt, found)


def client(stack: contextlib.ExitStack, model: str, flags: tuple[str, ...]) -> Client:
    """Of a cluster that runs as long as the stack."""
    return Client(stack.enter_context(Cluster(f"--threads={THREADS}", *flags)).url, model)


def rows_of(prompt: int, found: Mapping[str, list[Timing]]) -> list[Row]:
    """Medians against those of the colocated group."""
    first = {name: statistics.median(each.first_s * 1000 for each in timings) for name, timings in found.items()}
    second = {
        name: statistics.median((each.last_s - each.first_s) * 1000 for each in timings)
        for name, timings in found.items()
    }
    rows = []
    for name in found:
        if name != COLOCATED:
            title = f"{name}, prompt of {prompt}: "
            rows += [
                row(BENCH, title + "first token", first[name], "ms", reference=(COLOCATED, first[COLOCATED]), bar=BAR),
                row(BENCH, title + "second token", second[name], "ms", reference=(COLOCATED, second[COLOCATED])),
            ]
    return rows
