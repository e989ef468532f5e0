"""The CPU engine against the torch engine, transformers and vLLM: the same model, cores and dtype, in turns."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.beside import Unready, program, ready, tail
from bench.calm import come_to_rest
from bench.engine_model import write_directory, write_gguf
from bench.rows import Row, row
from tandem.engine.load import choose
from tandem.engine.model import bundled_model_path, read_shape

BENCH = "engine"
PEERS = "TANDEM_PEERS"
"""Of the environment: a directory; vLLM and llama.cpp are measured if DIR/vllm/bin/python and DIR/llama.cpp/bin/python
are Pythons that have vllm, and llama_cpp."""
US = "cpu"
TORCH, TRANSFORMERS, VLLM, LLAMA = "torch engine", "transformers", "vLLM", "llama.cpp"
BARS = {TORCH: ">= 1.0", TRANSFORMERS: ">= 1.0", VLLM: ">= 1.0"}
LLAMA_BARS = {1: ">= 0.8", 8: "> 1.0", 32: "> 1.0"}
"""Of decode, by the size of its batch; the rest is told."""
PYTHONS = {VLLM: "vllm", LLAMA: "llama.cpp"}
"""Folders of other engines in that of PEERS."""
PAGES = 2048
PAGE_SIZE = 16
LOADS_S = 240.0
ROOT = Path(__file__).parents[1]
ALL_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "4"}
"""vLLM would keep one core free for its server, which serves nobody here."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Case:
    """One thing that is measured: what is asked of a process, and the tokens that the answer's seconds are for."""

    title: str
    asked: tuple[str | int, ...]
    tokens: int


@dataclass(frozen=True)
class Size:
    """How much is measured. Every repeat is one turn of all engines."""

    repeats: int
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    requests: int
    prompt: int
    output: int


FULL = Size(5, (512, 2048), (1, 8, 32), (48, 540), 16, 32, 512, 64)
QUICK = Size(1, (64,), (1, 4), (48,), 2, 4, 64, 4)


class Timed(Protocol):
    """Whoever takes part."""

    @property
    def name(self) -> str:
        """As the table has it."""
        ...

    def seconds(self, case: Case) -> float:
        """What the tokens of a case took."""
        ...


class Side:
    """A process that answers cases."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def seconds(self, case: Case) -> float:
        """Raises Unready when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(case.asked).encode() + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise Unready(f"{self.name} has ended: {tail(self._log)}")
        return float(json.loads(line))


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases, on the bundled model, with a thread per core. Raises ConfigError without a native build, Unready."""
    size = QUICK if quick else FULL
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-engine-")))
        stack.enter_context(Console(stderr=True).status("loading"))
        sides, absent = open_sides(stack, folder)
        found = {case.title: in_turns(sides, case, size.repeats) for case in cases(size)}
    return [each for case in cases(size) for each in rows_of(case, found[case.title], absent)]


def cases(size: Size) -> Iterator[Case]:
    """In the order of the table."""
    for tokens in size.prompts:
        yield Case(f"prefill {tokens}", ("prefill", tokens), tokens)
    for context in size.contexts:
        for batch in size.batches:
            asked = ("decode", batch, context, size.steps)
            yield Case(f"decode, batch {batch} at {context} tokens", asked, batch * size.steps)
    title = f"{size.requests} requests of {size.prompt} in, {size.output} out"
    yield Case(title, ("serve", size.requests, size.prompt, size.output), size.requests * (size.prompt + size.output))


def open_sides(stack: contextlib.ExitStack, folder: Path) -> tuple[list[Side], dict[str, str]]:
    """Ours first; with the reasons of those that are not there, by name. Raises ConfigError, Unready."""
    shape = read_shape(str(bundled_model_path()))
    chosen = choose(shape, "bfloat16", "cpu", PAGE_SIZE)
    directory = folder / "model"
    write_directory(shape, directory)
    ours = [sys.executable, "-P", "-m", "bench.engine_ours"]
    peers = [sys.executable, "-P", "-m", "bench.engine_peers"]
    commands = {
        US: [*ours, chosen.name, str(directory)],
        TORCH: [*ours, "torch", str(directory)],
        TRANSFORMERS: [*peers, "transformers", str(directory)],
    }
    absent: dict[str, str] = {}
    for name, folder_name in PYTHONS.items():
        if (python := peer_python(folder_name)) is None:
            absent[name] = f"{PEERS} names no directory with {folder_name}/bin/python"
        else:
            commands[name] = [
                str(python),
                "-P",
                "-m",
                "bench.engine_peers",
                folder_name,
                str(model_for(name, directory)),
            ]
    sides = []
    for name, command in commands.items():
        try:
            sides.append(open_side(stack, name, command, folder / f"{name}.log"))
        except Unready as error:
            if name in (US, TORCH):
                raise
            absent[name] = str(error)
    return sides, absent


def model_for(name: str, directory: Path) -> Path:
    """What an engine reads of the bundled model: llama.cpp has a format of its own."""
    if name != LLAMA:
        return directory
    path = directory.with_suffix(".gguf")
    write_gguf(bundled_model_path(), path)
    return path


def peer_python(folder: str) -> Path | None:
    """The Python of another engine, if there is one."""
    python = Path(os.environ.get(PEERS, ""), folder, "bin", "python")
    return python if os.environ.get(PEERS) and python.is_file() else None


def open_side(stack: contextlib.ExitStack, name: str, command: Sequence[str], log: Path) -> Side:
    """With as many threads as there are cores. Raises Unready."""
    threads = str(len(os.sched_getaffinity(0)))
    environment = {**dict.fromkeys(THREAD_VARIABLES, threads), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment |= ALL_CORES
    process = stack.enter_context(program([*command, threads, str(PAGES)], log, environment))
    ready(process, log, LOADS_S)
    return Side(name, process, log)


def in_turns(sides: Sequence[Timed], case: Case, repeats: int) -> dict[str, float]:
    """Tokens per second by name, medians. Each turn begins with another one, and the first turn is not counted.

    Nobody begins while threads of the one before still spin.
    """
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(repeats + 1):
        first = turn % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            come_to_rest()
            taken_s = side.seconds(case)
            if turn:
                seconds[side.name].append(taken_s)
    return {name: case.tokens / statistics.median(all_s) for name, all_s in seconds.items()}


def rows_of(case: Case, found: Mapping[str, float], absent: Mapping[str, str]) -> Iterator[Row]:
    """Ours against each."""
    value = found[US]
    for name, other in found.items():
        if name != US:
            yield row(BENCH, case.title, value, "tok/s", reference=(name, other), bar=bar_of(name, case))
    for name, reason in absent.items():
        yield Row(bench=BENCH, case=case.title, value=value, unit="tok/s", reference=name, reason=reason)


def bar_of(name: str, case: Case) -> str:
    """Of our ratio to another engine; empty if there is none."""
    if name != LLAMA:
        return BARS[name]
    kind, size, *_ = case.asked
    return LLAMA_BARS.get(int(size), "") if kind == "decode" else ""
