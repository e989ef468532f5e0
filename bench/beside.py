"""Processes beside a benchmark: our own modules that serve until it ends, and programs of others."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.cluster import LEASH

READY = "READY "
READY_S = 60.0
END_S = 5.0

T = TypeVar("T")


class Unready(Exception):
    """It did not say that it is ready; the text has what it wrote."""


@contextlib.contextmanager
def module(name: str, order: object, kind: type[T], log: Path) -> Iterator[T]:
    """`python -m NAME` with the order as the first line of its standard input: what its READY line tells.

    Raises Unready.
    """
    with program([sys.executable, "-P", "-m", name], log) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        yield msgspec.json.decode(ready(process, log), type=kind)


@contextlib.contextmanager
def program(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, speaks: bool = True
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that runs until it is told to end, or this process has ended; what it writes is in the log.

    `speaks`: its standard output is for `ready`. Whoever writes more there would wait for ever for a reader.
    """
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LEASH, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if speaks else written,
            stderr=written,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def ready(process: "subprocess.Popen[bytes]", log: Path, within_s: float = READY_S) -> bytes:
    """What follows READY in a line of its standard output. Raises Unready."""
    assert process.stdout is not None
    end_s, text = time.monotonic() + within_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while READY.encode() not in text or not text.endswith(b"\n"):
            left_s = end_s - time.monotonic()
            data = os.read(process.stdout.fileno(), 1 << 16) if left_s > 0 and selector.select(left_s) else b""
            if not data:
                raise Unready(f"{log.stem} is not ready: {tail(log)}")
            text += data
    return text.rpartition(READY.encode())[2]


def tail(log: Path) -> str:
    """The last line that it has written."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line[-300:] for line in reversed(lines) if line.strip()), "it wrote nothing")


def ordered(kind: type[T]) -> T:
    """In such a process: the order."""
    return msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)


def tell(found: object) -> None:
    """In such a process: it serves from now on."""
    print(READY + msgspec.json.encode(found).decode(), flush=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it has started: an engine of others leaves its workers behind."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
