"""What a router's /metrics tells: its counters and histograms, and its view of groups, edges and the registry."""

import time
from collections.abc import Iterable, Iterator

from router.breakers import BreakerState, Key
from router.choices import Choices
from router.dispatch import Dispatch
from router.errors import ApiError
from router.membership import State
from router.placement import routes
from router.requests import Requests
from tandem.core.figures import Figures
from tandem.runtime.exposition import Exposition, Gauge
from tandem.runtime.metrics_table import BUCKETS, OTHER, ROUTER, SHED, STATUSES, served_by

CLIENT_GONE = "client_gone"
LEVELS = {BreakerState.CLOSED: 0, BreakerState.TRIAL: 1, BreakerState.OPEN: 2}


class RegistryView:
    """How it went the last time that the registry was read. Told on the thread that reads it."""

    def __init__(self) -> None:
        self.up = False
        self._read_at = time.monotonic()

    @property
    def stale_s(self) -> float:
        """Since it was read well, or since the router began."""
        return time.monotonic() - self._read_at

    def read(self) -> None:
        """It was read."""
        self.up, self._read_at = True, time.monotonic()

    def failed(self) -> None:
        """It could not be read."""
        self.up = False


class Metrics:
    """Told on the loop's thread of what happens to requests; renders what it knows."""

    def __init__(self) -> None:
        self.registry = RegistryView()
        self.figures = Figures(BUCKETS)
        self._exposition = Exposition(served_by(ROUTER), self.figures)

    def answered(self, status: int) -> None:
        """A request on the port for clients is over."""
        code = str(status)
        self.figures.count("http_requests_total", code if code in STATUSES else OTHER)

    def ended(self, status: int, seconds: float) -> None:
        """The same, of one that asks the model."""
        self.answered(status)
        self.figures.observe("request_duration_seconds", seconds)

    def refused(self, error: ApiError) -> None:
        """One of these got an error for its answer."""
        if error.code in SHED:
            self.figures.count("shed_total", error.code)

    def left(self, outcome: str) -> None:
        """One has ended in this way: it counts if its client had left."""
        if outcome == CLIENT_GONE:
            self.figures.count("disconnect_aborts_total")

    def over(self, prompt_tokens: int, choices: Choices, arrived: float, outcome: str) -> None:
        """One that had its turn has ended. `arrived`: when its body was whole."""
        self.left(outcome)
        self.figures.add("prompt_tokens_total", prompt_tokens)
        self.figures.add("generated_tokens_total", choices.count)
        first = min((one.first_at for one in choices.exchanges if one.first_at is not None), default=None)
        if first is not None:
            self.figures.observe("time_to_first_token_seconds", first - arrived)

    def render(self, gauges: Iterable[Gauge], requests: Requests) -> bytes:
        """Prometheus's text."""
        self.figures.histograms["inter_token_latency_seconds", ()] = requests.gaps
        counts: list[Gauge] = [
            ("retries_total", (), requests.retried),
            ("migrations_total", (), requests.migrated),
            ("registry_up", (), float(self.registry.up)),
            ("registry_stale_seconds", (), self.registry.stale_s),
        ]
        return self._exposition.render([*gauges, *counts])


def gauges_of(dispatch: Dispatch, queued: int) -> Iterator[Gauge]:
    """What this router sees at this moment."""
    yield "router_queue_depth", (), queued
    for watched in dispatch.membership.groups():
        now = dispatch.membership.state(watched)
        for state in State:
            labels = (watched.group.name, watched.group.role.value, state.name.lower())
            yield "worker_state", labels, float(state is now)
    for key in edges_of(dispatch):
        yield "breaker_state", ("->".join(key),), LEVELS[dispatch.breakers.state(key)]


def edges_of(dispatch: Dispatch) -> Iterator[Key]:
    """Each group that serves, and each pair of them."""
    heads = dispatch.membership.serving()
    yield from ((head.group.name,) for head in heads)
    yield from (route.names for route in routes(heads) if len(route.names) > 1)
