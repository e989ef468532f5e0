"""What a process knows, in Prometheus's text format: nothing that the table of metrics does not have."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from tandem.core.figures import Figures, Histogram, Labels
from tandem.runtime.metrics_table import Metric

T = TypeVar("T")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Gauge = tuple[str, Labels, float]
"""A metric's name without the prefix, its label values, and what it is at this moment."""


class Exposition(Collector):
    """A registry of its own with the metrics of one process. `own`: values of the first labels of all of them."""

    def __init__(self, metrics: Sequence[Metric], figures: Figures, own: Labels = ()) -> None:
        self._metrics = metrics
        self._figures = figures
        self._own = own
        self._gauges: dict[str, list[tuple[Labels, float]]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, gauges: Iterable[Gauge]) -> bytes:
        """The text. For one thread at a time. Raises KeyError for what is not in the table."""
        self._gauges = {metric.name: [] for metric in self._metrics if metric.kind != "histogram"}
        for name, labels, value in gauges:
            self._gauges[name].append((labels, value))
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """See prometheus_client: it calls this to render."""
        counters, histograms = by_name(self._figures.counters), by_name(self._figures.histograms)
        for metric in self._metrics:
            match metric.kind:
                case "counter":
                    yield self._counter(metric, counters.get(metric.name, {}) | dict(self._gauges[metric.name]))
                case "gauge":
                    yield self._gauge(metric, self._gauges[metric.name])
                case "histogram":
                    yield self._histogram(metric, histograms.get(metric.name, {}))

    def _counter(self, metric: Metric, seen: dict[Labels, float]) -> Family:
        family = CounterMetricFamily(metric.full_name, metric.help, labels=names_of(metric))
        for labels, value in self._whole(metric, seen, 0.0):
            family.add_metric(labels, value)
        return family

    def _gauge(self, metric: Metric, seen: list[tuple[Labels, float]]) -> Family:
        family = GaugeMetricFamily(metric.full_name, metric.help, labels=names_of(metric))
        for labels, value in seen:
            family.add_metric([*self._own, *labels], value)
        return family

    def _histogram(self, metric: Metric, seen: dict[Labels, Histogram]) -> Family:
        family = HistogramMetricFamily(metric.full_name, metric.help, labels=names_of(metric))
        for labels, histogram in self._whole(metric, seen, Histogram(metric.buckets)):
            family.add_metric(labels, *buckets_of(histogram))
        return family

    def _whole(self, metric: Metric, seen: dict[Labels, T], nothing: T) -> Iterator[tuple[list[str], T]]:
        """With nothing for every value that its labels may have: a rate needs something to begin from."""
        labels = metric.labels[len(self._own) :]
        if all(label.values for label in labels):
            seen = dict.fromkeys(product(*(label.values for label in labels)), nothing) | seen
        return (([*self._own, *values], value) for values, value in seen.items())


def names_of(metric: Metric) -> list[str]:
    """Of its labels."""
    return [label.name for label in metric.labels]


def by_name(figures: dict[tuple[str, Labels], T]) -> dict[str, dict[Labels, T]]:
    """Figures by metric, then by label values."""
    found: dict[str, dict[Labels, T]] = {}
    for (name, labels), value in list(figures.items()):
        found.setdefault(name, {})[labels] = value
    return found


def buckets_of(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, as the format wants them, and the sum."""
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True)), histogram.sum
