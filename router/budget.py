"""How many requests may be computed anew because a hand-over failed, so that retries never multiply the load."""

from collections.abc import Callable

SHARE = 0.1
"""Of the requests of about WINDOW_S, may be retries."""
FLOOR = 10
"""Retries in that time that are always allowed, for who has little traffic."""
WINDOW_S = 10.0
DELAY_S = 0.05
"""Before the first retry of a request, on average; the next one waits for twice as long."""


class RetryBudget:
    """Counts in two windows, this one and the one before. `draw` gives numbers in [0, 1), for the delays."""

    def __init__(self, draw: Callable[[], float], floor: int = FLOOR, delay_s: float = DELAY_S) -> None:
        self.refused = 0
        """Retries that would have been too many."""
        self._draw = draw
        self._floor = floor
        self._delay_s = delay_s
        self._window = 0
        self._requests = [0, 0]  # in this window and the one before
        self._retries = [0, 0]

    def on_request(self, now: float) -> None:
        """A new one has come."""
        self._move(now)
        self._requests[0] += 1

    def spend(self, now: float) -> bool:
        """Whether one more retry is allowed; if so it counts."""
        self._move(now)
        if sum(self._retries) >= max(self._floor, SHARE * sum(self._requests)):
            self.refused += 1
            return False
        self._retries[0] += 1
        return True

    def delay_s(self, tries: int) -> float:
        """Before a request is tried again that was so often before: half to one and a half times the usual."""
        return self._delay_s * float(2**tries) * (0.5 + self._draw())

    def _move(self, now: float) -> None:
        window = int(now // WINDOW_S)
        for counts in (self._requests, self._retries):
            if window != self._window:
                counts[1] = counts[0] if window == self._window + 1 else 0
                counts[0] = 0
        self._window = window


def unlimited() -> RetryBudget:
    """Every retry at once, as many as a request may have."""
    return RetryBudget(lambda: 0.0, floor=2**62, delay_s=0.0)
