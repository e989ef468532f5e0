"""The tables of docs/metrics.md, from the table that the processes serve from."""

from collections.abc import Iterable

from tandem.runtime.metrics_table import (
    OWN_LABELS,
    RANKS,
    ROUTER_METRICS,
    SCHEDULER_METRICS,
    TRANSFER_METRICS,
    Label,
    Metric,
)


def metric_tables() -> str:
    """Markdown: one section for each kind of figure."""
    sections = (
        ("Router", ROUTER_METRICS, ""),
        ("Scheduler", SCHEDULER_METRICS, _own()),
        ("Transfer", TRANSFER_METRICS, _own()),
    )
    return "\n\n".join(f"## {title}\n\n{before}{_table(metrics)}" for title, metrics, before in sections)


def _own() -> str:
    names = ", ".join(f"`{label.name}`" for label in OWN_LABELS)
    return f"Served by every rank, with its own {names} on each metric; with others as named.\n\n"


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | kind | labels | what it tells |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{one.full_name}` | {one.kind} | {_labels(one) or 'none'} | {_served(one)}{one.help} |" for one in metrics
    ]
    return "\n".join(lines)


def _labels(metric: Metric) -> str:
    return "; ".join(_label(label) for label in metric.labels if label not in OWN_LABELS or metric.where == ("router",))


def _label(label: Label) -> str:
    told = ", ".join(f"`{value}`" for value in label.values) if label.values else label.bound
    return f"`{label.name}`: {told}"


def _served(metric: Metric) -> str:
    """Which ranks, if not all."""
    few = 0 < len(metric.where) < len(RANKS) and metric.where != ("router",)
    return f"({', '.join(metric.where)}) " if few else ""
