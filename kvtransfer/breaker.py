"""When a prefill rank stops to write to a decode rank, and when it tries again: a breaker per edge, as a state table.

A handshake ends with a write, the known answer, so every handshake is a trial. Writes that fail in a row open the
breaker; while it is open, nobody is answered; after a back-off that doubles each time the next handshake is the trial.
"""

import enum
from collections.abc import Iterator

from kvtransfer.handshake import Key
from tandem.core.messages import Hello
from tandem.core.tables import follow

MAX_FAILED = 3
"""Writes that fail in a row and close an edge."""
BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0


class BreakerState(enum.Enum):
    """Of one edge."""

    TRIAL = "on trial"  # the handshake is not done
    CLOSED = "closed"  # writes flow
    OPEN = "open"  # none does, until the back-off is over


class BreakerInput(enum.Enum):
    """What can happen to an edge."""

    BEGUN = "begun"  # a handshake
    PASSED = "passed"
    FAILED = "failed"


BREAKER_NEXT: dict[tuple[BreakerState, BreakerInput], BreakerState] = {
    (BreakerState.TRIAL, BreakerInput.BEGUN): BreakerState.TRIAL,
    (BreakerState.TRIAL, BreakerInput.PASSED): BreakerState.CLOSED,
    (BreakerState.TRIAL, BreakerInput.FAILED): BreakerState.OPEN,
    (BreakerState.CLOSED, BreakerInput.BEGUN): BreakerState.TRIAL,
    (BreakerState.CLOSED, BreakerInput.FAILED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerInput.BEGUN): BreakerState.TRIAL,
}


class Breaker:
    """One edge's. Times are monotonic seconds; `scale` multiplies the back-off."""

    def __init__(self, scale: float = 1.0) -> None:
        self.state = BreakerState.TRIAL
        self.reason = ""  # why it is open
        self._scale = scale
        self._failed = 0  # writes in a row
        self._back_off_s = BACK_OFF_S
        self._until_s = 0.0

    def left_s(self, now_s: float) -> float:
        """Until the next trial, 0 if there may be one now."""
        return max(0.0, self._until_s - now_s) if self.state is BreakerState.OPEN else 0.0

    def refusal(self, now_s: float) -> str:
        """What to tell of an open one."""
        return f"{self.reason}; it is tried again in {self.left_s(now_s):.0f} s"

    def begin(self, now_s: float) -> bool:
        """A handshake begins, which is the trial. False: not before the back-off is over."""
        if self.left_s(now_s):
            return False
        self._move(BreakerInput.BEGUN)
        return True

    def tried(self, failure: str | None, now_s: float) -> None:
        """The trial is over: None if it has passed, else why not."""
        if failure is None:
            self._move(BreakerInput.PASSED)
            self._failed = 0
        else:
            self._open(failure, now_s)

    def wrote(self, well: bool, now_s: float) -> bool:
        """A write of an edge that is closed has ended. False: it was the last one, the breaker is open now."""
        if well:
            self._failed, self._back_off_s = 0, BACK_OFF_S
            return True
        self._failed += 1
        if self._failed < MAX_FAILED:
            return True
        self._open(f"{MAX_FAILED} writes in a row failed", now_s)
        return False

    def _open(self, reason: str, now_s: float) -> None:
        self._move(BreakerInput.FAILED)
        self.reason = reason
        self._until_s = now_s + self._back_off_s * self._scale
        self._back_off_s = min(2 * self._back_off_s, BACK_OFF_MAX_S)

    def _move(self, happened: BreakerInput) -> None:
        self.state = follow(BREAKER_NEXT, self.state, happened, "an edge's breaker")


class Breakers:
    """One for each decode rank. A new instance of it is not blamed for what the one before did."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._breakers: dict[Key, tuple[tuple[int, int], Breaker]] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._breakers)

    def of(self, hello: Hello) -> Breaker:
        """The breaker of the edge to this instance."""
        key, instance = (hello.group, hello.rank), (hello.incarnation, hello.fence)
        known, breaker = self._breakers.get(key, (None, None))
        if breaker is None or known != instance:
            breaker = Breaker(self._scale)
            self._breakers[key] = instance, breaker
        return breaker

    def forget(self, key: Key) -> None:
        """The rank is gone."""
        self._breakers.pop(key, None)

    def refusals(self, now_s: float) -> dict[Key, str]:
        """Edges that are not used, with the reason and the time left."""
        broken = {key: one for key, (_, one) in self._breakers.items() if one.state is BreakerState.OPEN}
        return {key: one.refusal(now_s) for key, one in broken.items()}
