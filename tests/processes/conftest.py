"""One cluster at a time, and at rest after every test: what a test leaves behind fails that test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster import Cluster
from hands import Rank, Start

DEADLINE_S = 60.0


class Clusters:
    """Starts the cluster that a test asks for, and keeps it for the next one that asks for the same."""

    def __init__(self) -> None:
        self._arguments: tuple[str, ...] = ()
        self._running: Cluster | None = None

    def get(self, *arguments: str) -> Cluster:
        if self._running is None or arguments != self._arguments or self._running.process.poll() is not None:
            self.stop()
            self._running, self._arguments = Cluster(*arguments).__enter__(), arguments
        return self._running

    def rest(self) -> None:
        """Every page is back on every rank, or the cluster is given up and the test fails."""
        if self._running is not None and self._running.process.poll() is None:
            try:
                self._running.at_rest(DEADLINE_S)
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.__exit__(None, None, None)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ranks that have no scheduler; none outlives its test."""
    started: list[Rank] = []

    def rank(*arguments: Any, **how: Any) -> Rank:
        started.append(Rank(*arguments, **how))
        return started[-1]

    yield rank
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def _clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.stop()


@pytest.fixture
def cluster_of(_clusters: Clusters) -> Iterator[Callable[..., Cluster]]:
    """`cluster_of("--model", "fake:8")`: a running cluster, checked for leaks after the test."""
    yield _clusters.get
    _clusters.rest()


@pytest.fixture
def no_other_cluster(_clusters: Clusters) -> None:
    """For tests that start and end clusters of their own."""
    _clusters.stop()
