"""Whole clusters on this machine, with HTTP and all, against vLLM's server and against the engine alone."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench import engine
from bench.beside import Unready
from bench.cluster import Cluster
from bench.e2e_lost import lost
from bench.e2e_sides import SERVED_NAME, Server, vllm_server
from bench.engine import PEERS, Case, Timed, cases, in_turns, open_side, peer_python
from bench.engine_model import write_directory, write_tokenizer
from bench.idle import idle_cpu, idle_wake
from bench.rows import Row, row
from tandem.engine.load import choose
from tandem.engine.model import bundled_model_path, read_shape
from tandem.local.wanted import served_name

BENCH = "e2e"
ONE, TWO, COLOCATED = "PP 1 + PP 1", "PP 2 + PP 2", "colocated"
SHAPES = {
    ONE: ("--prefill-pp=1", "--decode-pp=1"),
    COLOCATED: ("--colocated", "--pp=1"),
    TWO: ("--prefill-pp=2", "--decode-pp=2"),
}
VLLM, VLLM_ALL, ALONE = "vLLM's server", "vLLM's server, all cores", "the engine alone"
"""vLLM keeps a core free for its server unless it is told otherwise. With all cores it is faster in a prompt and slower
in steps, as its threads spin while they wait for one that has no core.
"""
SETTINGS = {
    VLLM: {"VLLM_CPU_KVCACHE_SPACE": "4"},
    VLLM_ALL: {**engine.ALL_CORES, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
}
BARS = {
    **{(ours, theirs): ">= 1.0" for ours in (ONE, COLOCATED) for theirs in SETTINGS},
    (TWO, ONE): ">= 0.9",
}
"""Of the ratios that are judged, by who is compared with whom; the others are told."""
COMPARED = (
    *((ours, theirs) for theirs in SETTINGS for ours in SHAPES),
    (TWO, ONE),
    *((ours, ALONE) for ours in SHAPES),
)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    turns: engine.Size
    lost_prompts: tuple[int, ...]
    lost_batches: tuple[int, ...]
    idle_cpu_s: float
    idle_s: float


FULL = Size(replace(engine.FULL, steps=64), (512,), (1, 32), 30.0, 10.0)
QUICK = Size(replace(engine.QUICK, steps=16), (64,), (1,), 5.0, 2.0)


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases, on the bundled model. Raises ClusterFailed, ConfigError, ConnectionError, Unready."""
    size = QUICK if quick else FULL
    repeats = size.turns.repeats
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-e2e-")))
        status = stack.enter_context(Console(stderr=True).status("loading"))
        servers, alone, absent = open_all(stack, folder)
        ours = [server for server in servers if server.cluster is not None]
        rows: list[Row] = []
        for server in ours:
            status.update(f"{server.name}: what is lost")
            if server.name != TWO:
                for prompt in size.lost_prompts:
                    rows += lost(server, alone, prompt, size.turns.steps, size.lost_batches, repeats)
        for case in cases(size.turns):
            status.update(case.title)
            rows += rows_of(case, in_turns([*servers, alone], case, repeats), absent)
        status.update("idle")
        return [*rows, *idle(ours[-1], size)]


def idle(server: Server, size: Size) -> Iterator[Row]:
    """What the cluster of most processes costs when nobody asks."""
    assert server.cluster is not None
    yield idle_cpu(server.name, server.cluster.process.pid, size.idle_cpu_s)
    yield idle_wake(server.name, server.url, server.model, size.turns.repeats, size.idle_s)


def open_all(stack: contextlib.ExitStack, folder: Path) -> tuple[list[Server], Timed, dict[str, str]]:
    """The servers, the engine without any, and why others are absent. Each has all cores when it is its turn."""
    model = bundled_model_path()
    shape = read_shape(str(model))
    directory = folder / "model"
    write_directory(shape, directory)
    servers, absent = [], {}
    for name, flags in SHAPES.items():
        cluster = stack.enter_context(Cluster(*flags))
        servers.append(Server(name, cluster.url, served_name(str(model)), shape.vocab, cluster))
    for name, settings in SETTINGS.items():
        try:
            url = open_vllm(stack, model, directory, folder / f"{name}.log", settings)
            servers.append(Server(name, url, SERVED_NAME, shape.vocab))
        except (ImportError, Unready) as error:
            absent[name] = str(error)
    chosen = choose(shape, "auto", "auto", engine.PAGE_SIZE)
    command = [sys.executable, "-P", "-m", "bench.engine_ours", chosen.name, str(directory)]
    return servers, open_side(stack, ALONE, command, folder / "alone.log"), absent


def open_vllm(stack: contextlib.ExitStack, gguf: Path, directory: Path, log: Path, settings: Mapping[str, str]) -> str:
    """Its address. Raises ImportError, Unready."""
    if (python := peer_python("vllm")) is None:
        raise Unready(f"{PEERS} names no directory with vllm/bin/python")
    write_tokenizer(gguf, directory)
    return stack.enter_context(vllm_server(python, directory, log, settings))


def rows_of(case: Case, found: Mapping[str, float], absent: Mapping[str, str]) -> Iterator[Row]:
    """Who is compared with whom."""
    for name, other in COMPARED:
        value = found[name]
        title = f"{name}: {case.title}"
        if other in absent:
            yield Row(bench=BENCH, case=title, value=value, unit="tok/s", reference=other, reason=absent[other])
        else:
            bar = BARS.get((name, other), "")
            yield row(BENCH, title, value, "tok/s", reference=(other, found[other]), bar=bar)
