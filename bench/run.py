"""The benchmarks by name, and how `tandem bench` runs them."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.rows import Row, report, show
from tandem.core.errors import ConfigError
from tandem.runtime.places import check_target


class Settings(msgspec.Struct, frozen=True):
    """`quick` is for seeing that a benchmark works: its figures mean little."""

    quick: bool = False
    seed: int = 1


def _measure(module: str) -> Callable[[Settings], list[Row]]:
    """A benchmark by its module, which is imported only when it runs."""

    def measure(settings: Settings) -> list[Row]:
        rows: list[Row] = importlib.import_module(module).measure(quick=settings.quick, seed=settings.seed)
        return rows

    return measure


BENCHES: dict[str, Callable[[Settings], list[Row]]] = {
    "pipeline": _measure("bench.pipeline"),
    "consensus": _measure("bench.consensus"),
    "scheduler": _measure("bench.scheduler"),
    "ring": _measure("bench.ring"),
    "transfer": _measure("bench.transfer"),
    "overlap": _measure("bench.overlap"),
    "sim": _measure("bench.simulation"),
    "e2e": _measure("bench.e2e"),
    "storm": _measure("bench.faults.storm"),
}


def run(name: str, settings: Settings, *, every: bool, json_file: Path | None) -> int:
    """Run one benchmark, or all; returns the exit status: 1 when a bar does not hold. Raises ConfigError."""
    if not every and not name:
        print(f"{', '.join(BENCHES)}: give one of them, or --all")
        return 0
    if not every and name not in BENCHES:
        raise ConfigError(f"the benchmark is {name!r}: give --all, or one of {', '.join(BENCHES)}")
    if json_file is not None:
        check_target("--json", str(json_file))
    rows = [row for each in (BENCHES if every else [name]) for row in BENCHES[each](settings)]
    result = report(rows, settings.seed)
    show(result)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        print(f"written to {json_file}", file=sys.stderr)
    return 1 if any(row.holds is False for row in rows) else 0
