"""How long to wait before a process that has ended is started again."""

YOUNG_S = 60.0
"""A process that has lived this long did not fail because of how it starts."""
FIRST_S = 1.0
LONGEST_S = 30.0
MOST_DOUBLINGS = 8


class BackOff:
    """Of one process: at once, then after 1, 2, 4 ... 30 s while it keeps ending young."""

    def __init__(self) -> None:
        self._ends = 0  # in a row, each soon after its start

    def after(self, lived_s: float) -> float:
        """Seconds until the next start, now that it has ended after a life of so many seconds."""
        if lived_s >= YOUNG_S:
            self._ends = 0
        self._ends += 1
        if self._ends == 1:
            return 0.0
        return min(FIRST_S * float(1 << min(self._ends - 2, MOST_DOUBLINGS)), LONGEST_S)
