"""The benchmarks by name, and how `tandem bench` runs them."""

import importlib
import sys
from collections.abc import Callable, Sequence
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
    "placement": _measure("bench.placement"),
    "e2e": _measure("bench.e2e"),
    "engine": _measure("bench.engine"),
    "goodput": _measure("bench.goodput"),
    "slots": _measure("bench.slots"),
    "storm": _measure("bench.faults.storm"),
    "router": _measure("bench.router.cases"),
}


def measured(names: Sequence[str], settings: Settings) -> list[Row]:
    """All rows. On a terminal a line tells which benchmark runs, and for how long."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    rows: list[Row] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=f"bench {name}")
            rows += BENCHES[name](settings)
            progress.advance(task)
    return rows


def run(name: str, settings: Settings, *, every: bool, json_file: Path | None) -> int:
    """Run one benchmark, or all; returns the exit status: 1 when a bar does not hold. Raises ConfigError."""
    if not every and not name:
        print(f"{', '.join(BENCHES)}: give one of them, or --all")
        return 0
    if not every and name not in BENCHES:
        raise ConfigError(f"the benchmark is {name!r}: give --all, or one of {', '.join(BENCHES)}")
    if json_file is not None:
        check_target("--json", str(json_file))
    rows = measured(list(BENCHES) if every else [name], settings)
    result = report(rows, settings.seed)
    show(result)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        print(f"written to {json_file}", file=sys.stderr)
    return 1 if any(row.holds is False for row in rows) else 0
