"""Counters and histograms of one process: cheap to change where something happens, read when somebody asks."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

Labels = tuple[str, ...]
"""Values, in the order of the metric's labels."""


class Histogram:
    """Observations by bucket. `counts[i]` has those up to `bounds[i]`, the last one those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """So many more. Less than nothing is nothing: clocks of two threads are compared here and there."""
        if value < 0:
            value = 0.0
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Of all observations."""
        return sum(self.counts)


class Figures:
    """All counters and histograms of a process, by name and label values. One thread changes them, any may read."""

    def __init__(self, buckets: Mapping[str, Sequence[float]]) -> None:
        """`buckets` of the histograms, by name: there are no others."""
        self.counters: dict[tuple[str, Labels], float] = {}
        self.histograms: dict[tuple[str, Labels], Histogram] = {}
        self._buckets = buckets

    def add(self, name: str, by: float, *labels: str) -> None:
        """A counter grows."""
        key = name, labels
        self.counters[key] = self.counters.get(key, 0) + by

    def count(self, name: str, *labels: str) -> None:
        """A counter grows by one."""
        self.add(name, 1, *labels)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """A histogram has one observation more."""
        self.histogram(name, *labels).observe(value)

    def histogram(self, name: str, *labels: str) -> Histogram:
        """The one of these labels, for who observes often."""
        key = name, labels
        found = self.histograms.get(key)
        if found is None:
            found = self.histograms[key] = Histogram(self._buckets[name])
        return found
