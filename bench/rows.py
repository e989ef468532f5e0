"""What a benchmark reports, as a table for people and as JSON for programs."""

import importlib.metadata
import operator
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PACKAGES = ("tandem", "torch", "numpy", "mooncake-transfer-engine-non-cuda", "pyzmq", "msgspec", "fastapi", "uvloop")

WIDTH = 160
"""Of the table where there is no terminal that has one."""

_BAR = re.compile(r"(?P<sign>[<>]=?) (?P<limit>[\d.]+)(?: .*)?")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured case. `ratio` is value / reference_value; `holds` is null where nothing can be said, and why."""

    bench: str
    case: str
    value: float
    unit: str
    reference: str = ""
    reference_value: float | None = None
    ratio: float | None = None
    bar: str = ""
    holds: bool | None = None
    reason: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of benchmarks."""

    rows: list[Row]
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    load: list[float]
    seed: int


def row(
    bench: str, case: str, value: float, unit: str, *, bar: str = "", reference: tuple[str, float] | None = None
) -> Row:
    """A row that judges itself: by its ratio to the reference if there is one, else by its value."""
    name, reference_value = reference or ("", None)
    ratio = value / reference_value if reference_value else None
    return Row(
        bench=bench,
        case=case,
        value=value,
        unit=unit,
        reference=name,
        reference_value=reference_value,
        ratio=ratio,
        bar=bar,
        holds=holds(bar, value if ratio is None else ratio) if bar else None,
        reason="" if bar else "no bar: it is reported",
    )


def holds(bar: str, measured: float) -> bool:
    """Whether a figure is within a bar such as `>= 0.95` or `<= 20 ms`. Raises ValueError for another kind of bar."""
    found = _BAR.fullmatch(bar)
    if found is None:
        raise ValueError(f"bar is {bar!r}: write a comparison and a number, such as '>= 0.95'")
    return COMPARISONS[found["sign"]](measured, float(found["limit"]))


def report(rows: Sequence[Row], seed: int) -> Report:
    """The rows, and where they were measured."""
    return Report(rows=list(rows), machine=machine(), versions=versions(), load=list(os.getloadavg()), seed=seed)


def machine() -> dict[str, str | int | float]:
    """What the figures depend on."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else 0,
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    """Python and the packages that the figures depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def show(result: Report) -> None:
    """The table."""
    table = Table("bench", "case", "value", "unit", "reference", "its value", "ratio", "bar", "holds")
    for each in result.rows:
        table.add_row(
            each.bench,
            each.case,
            figure(each.value),
            each.unit,
            each.reference,
            figure(each.reference_value),
            figure(each.ratio),
            each.bar,
            {True: "yes", False: "NO", None: each.reason}[each.holds],
        )
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(f"{result.machine['cpu']}, {result.machine['cores']} cores, load {result.load[0]:.2f}", style="dim")


def figure(value: float | None) -> str:
    """Three digits are all that a benchmark knows."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
