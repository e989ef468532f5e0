"""Who of a group has not been heard for too long. Times are monotonic seconds."""

from tandem.core.ids import RankId


class Silence:
    """`look` often. Who was asleep itself for a while accuses nobody of what it has not heard meanwhile."""

    def __init__(self, dead_s: float) -> None:
        self._dead_s = dead_s
        self._heard_s: dict[RankId, float] = {}
        self._looked_s: float | None = None

    def heard(self, rank: RankId, now_s: float) -> None:
        """A sign of life."""
        self._heard_s[rank] = now_s

    def look(self, now_s: float) -> RankId | None:
        """The first rank that is taken for dead."""
        nap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if nap_s > self._dead_s / 2:
            self._heard_s = {rank: min(now_s, heard_s + nap_s) for rank, heard_s in self._heard_s.items()}
        return next((rank for rank, heard_s in self._heard_s.items() if now_s - heard_s > self._dead_s), None)

    def due_s(self, now_s: float) -> float:
        """How long until a rank may have to be taken for dead."""
        first_s = min(self._heard_s.values(), default=now_s)  # a rank of one hears nobody
        return max(0.0, first_s + self._dead_s - now_s)
