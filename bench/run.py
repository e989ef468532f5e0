"""The benchmarks by name, and how `tandem bench` runs them."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.rows import Row, report, show
from tandem.core.errors import ConfigError


class Settings(msgspec.Struct, frozen=True):
    """`quick` is for seeing that a benchmark works: its figures mean little."""

    quick: bool = False
    seed: int = 1


def _e2e(settings: Settings) -> list[Row]:
    from bench.e2e import measure

    return measure(quick=settings.quick, seed=settings.seed)


def _pipeline(settings: Settings) -> list[Row]:
    from bench.pipeline import measure

    return measure(quick=settings.quick, seed=settings.seed)


def _consensus(settings: Settings) -> list[Row]:
    from bench.consensus import measure

    return measure(quick=settings.quick, seed=settings.seed)


def _scheduler(settings: Settings) -> list[Row]:
    from bench.scheduler import measure

    return measure(quick=settings.quick, seed=settings.seed)


def _ring(settings: Settings) -> list[Row]:
    from bench.ring import measure

    return measure(quick=settings.quick, seed=settings.seed)


BENCHES: dict[str, Callable[[Settings], list[Row]]] = {
    "pipeline": _pipeline,
    "consensus": _consensus,
    "scheduler": _scheduler,
    "ring": _ring,
    "e2e": _e2e,
}
"""Each imports what it measures only when it runs."""


def run(name: str, settings: Settings, *, every: bool, json_file: Path | None) -> int:
    """Run one benchmark, or all; returns the exit status: 1 when a bar does not hold. Raises ConfigError."""
    if not every and name not in BENCHES:
        raise ConfigError(f"the benchmark is {name!r}: give --all, or one of {', '.join(BENCHES)}")
    rows = [row for each in (BENCHES if every else [name]) for row in BENCHES[each](settings)]
    result = report(rows, settings.seed)
    show(result)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        print(f"written to {json_file}", file=sys.stderr)
    return 1 if any(row.holds is False for row in rows) else 0
