"""How much a second, over the last seconds. Pure: time is an argument."""

from collections import deque

SPAN_S = 10.0
"""A rate is of so long: bursts of one second would only flicker."""


class Meter:
    """Amounts as they are heard of."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._heard: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, now: float, amount: int) -> None:
        """So much more."""
        self._heard.append((now, amount))
        self._sum += amount

    def per_s(self, now: float) -> float:
        """Of the last `SPAN_S`, or since the meter is there if that is less."""
        while self._heard and self._heard[0][0] <= now - SPAN_S:
            self._sum -= self._heard.popleft()[1]
        return self._sum / max(1.0, min(SPAN_S, now - self._since))
