"""When a group, or the edge from a prefill to a decode group, gets no requests: a breaker for each, as a state table.

Failures in a row open it. After a while one request is the trial: if that ends well the breaker is closed, if it fails
the breaker is open for as long again. What says nothing about the groups, such as a client's mistake, does not count.
"""

import enum
from collections.abc import Iterator, Sequence

from tandem.core.tables import follow

FAILURES_MAX = 5
"""In a row, and a breaker opens."""
OPEN_S = 30.0
"""Until the trial."""

Key = tuple[str, ...]
"""A group's name, or a prefill and a decode group's: the edge between them."""


def named(key: Key) -> str:
    """A group or an edge, for people."""
    return " -> ".join(key)


class BreakerState(enum.Enum):
    """Of one group or edge."""

    CLOSED = "closed"  # requests go there
    OPEN = "open"  # none does
    TRIAL = "on trial"  # one does


class BreakerInput(enum.Enum):
    """What can happen to it."""

    TRIED = "tried"  # a request goes there although it is open
    PASSED = "passed"  # a request ended well
    FAILED = "failed"  # one more than it may
    NOTHING = "nothing"  # the trial ended and tells nothing


BREAKER_NEXT: dict[tuple[BreakerState, BreakerInput], BreakerState] = {
    (BreakerState.CLOSED, BreakerInput.PASSED): BreakerState.CLOSED,
    (BreakerState.CLOSED, BreakerInput.FAILED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerInput.TRIED): BreakerState.TRIAL,
    (BreakerState.OPEN, BreakerInput.PASSED): BreakerState.CLOSED,
    (BreakerState.OPEN, BreakerInput.FAILED): BreakerState.OPEN,
    (BreakerState.TRIAL, BreakerInput.TRIED): BreakerState.TRIAL,
    (BreakerState.TRIAL, BreakerInput.PASSED): BreakerState.CLOSED,
    (BreakerState.TRIAL, BreakerInput.FAILED): BreakerState.OPEN,
    (BreakerState.TRIAL, BreakerInput.NOTHING): BreakerState.OPEN,
}


class Breaker:
    """Times are the clock's seconds."""

    def __init__(self, failures_max: int, open_s: float) -> None:
        self.state = BreakerState.CLOSED
        self.failures = 0
        """In a row."""
        self._failures_max = failures_max
        self._open_s = open_s
        self._until = 0.0
        self._failed_at = 0.0

    def lately(self, now: float) -> int:
        """Failures in a row, if the last one is not as long ago as it takes until a trial."""
        return self.failures if now < self._failed_at + self._open_s else 0

    def left_s(self, now: float) -> float:
        """Until a request may go there; 0 when one may now. While one is on trial, no second one is."""
        if self.state is BreakerState.CLOSED:
            return 0.0
        # A trial that takes long is not waited for: after as long again the next request is one, too.
        return max(0.0, self._until - now)

    def tried(self, now: float) -> None:
        """A request goes there."""
        if self.state is not BreakerState.CLOSED:
            self._follow(BreakerInput.TRIED)
            self._until = now + self._open_s

    def passed(self) -> None:
        """A request ended well there, whenever it began."""
        self.failures = 0
        self._follow(BreakerInput.PASSED)

    def failed(self, now: float) -> None:
        """It failed, and that is its fault as far as anybody knows."""
        self.failures += 1
        self._failed_at = now
        if self.state is not BreakerState.CLOSED or self.failures >= self._failures_max:
            self._follow(BreakerInput.FAILED)
            self._until = now + self._open_s

    def nothing(self, now: float) -> None:
        """A request ended there that tells nothing: if it was the trial, the next one is."""
        if self.state is BreakerState.TRIAL:
            self._follow(BreakerInput.NOTHING)
            self._until = now

    def _follow(self, happened: BreakerInput) -> None:
        self.state = follow(BREAKER_NEXT, self.state, happened, "the breaker of a group or an edge")


class Breakers:
    """One for each group and edge that ever failed; who never did has none."""

    def __init__(self, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S) -> None:
        self._failures_max = failures_max
        self._open_s = open_s
        self._breakers: dict[Key, Breaker] = {}

    def __len__(self) -> int:
        return len(self._breakers)

    def keys(self, names: Key) -> Iterator[Key]:
        """Of a route's groups, and of the edge between them; none while all is well everywhere."""
        if not self._breakers:
            return
        for name in names:
            yield (name,)
        if len(names) > 1:
            yield names

    def state(self, key: Key) -> BreakerState:
        """Closed, if it never failed."""
        breaker = self._breakers.get(key)
        return BreakerState.CLOSED if breaker is None else breaker.state

    def of_group(self, name: str) -> dict[Key, Breaker]:
        """Those of a group that have failed lately, the group's own included."""
        return {key: one for key, one in self._breakers.items() if name in key and one.failures}

    def failures(self, key: Key) -> int:
        """In a row, of one group or edge."""
        return self._breakers[key].failures if key in self._breakers else 0

    def lately(self, names: Key, now: float) -> int:
        """Failures in a row of the groups and the edge of a route, unless they are long ago."""
        return sum(self._breakers[key].lately(now) for key in self.keys(names) if key in self._breakers)

    def rest(self, names: Key, now: float) -> tuple[Key, float]:
        """What keeps requests from a route for longest, and how long yet; 0 s when nothing does."""
        waits = [(key, self._breakers[key].left_s(now)) for key in self.keys(names) if key in self._breakers]
        return max(waits, key=lambda wait: wait[1], default=((), 0.0))

    def tried(self, names: Key, now: float) -> None:
        """A request takes this route."""
        for key in self.keys(names):
            if key in self._breakers:
                self._breakers[key].tried(now)

    def passed(self, names: Key) -> None:
        """A request ended well on this route."""
        for key in self.keys(names):
            self._breakers.pop(key, None)

    def failed(self, key: Key, now: float) -> None:
        """This group or edge is to blame."""
        breaker = self._breakers.get(key)
        if breaker is None:
            breaker = self._breakers[key] = Breaker(self._failures_max, self._open_s)
        breaker.failed(now)

    def nothing(self, names: Key, now: float) -> None:
        """A request ended on this route, and tells nothing."""
        for key in self.keys(names):
            if key in self._breakers:
                self._breakers[key].nothing(now)

    def forget(self, known: Sequence[str]) -> None:
        """Only these groups are left."""
        for key in [key for key in self._breakers if not all(name in known for name in key)]:
            del self._breakers[key]
