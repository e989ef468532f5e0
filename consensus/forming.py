"""How a ring forms: rank 0 waits until every rank has joined, then names the epoch and what all of them can hold."""

from tandem.core.config import Limits
from tandem.core.errors import ConfigError
from tandem.core.ids import Epoch, RankId
from tandem.core.messages import Formed, Join

BOOT_SHIFT = 20
"""A fresh process contributes its start time in the high bits: its epoch is above all before, if clocks were right."""


class Forming:
    """Rank 0's list of who has joined."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._joins: dict[RankId, Join] = {}

    def on(self, join: Join) -> Formed | None:
        """A rank joins, or says so again; the answer once all are here. A new incarnation replaces the old one.

        Raises ConfigError for a rank that was started otherwise than those that are here: it does not join.
        """
        if not 0 <= join.rank < self._size:
            raise ConfigError(f"rank {join.rank} joins, but pp-size is {self._size} here: give all ranks the same")
        for other in self._joins.values():
            if other.rank != join.rank:
                _agree(other, join)
        self._joins[join.rank] = join
        return self.formed

    @property
    def formed(self) -> Formed | None:
        """The epoch and the agreed page count, once every rank has joined."""
        if len(self._joins) < self._size:
            return None
        newest = max(max(join.boot_ms << BOOT_SHIFT, join.known) for join in self._joins.values())
        pages = min(join.limits.num_pages for join in self._joins.values())
        incarnations = tuple(self._joins[RankId(rank)].incarnation for rank in range(self._size))
        return Formed(Epoch(newest + 1), pages, incarnations)

    @property
    def missing(self) -> list[RankId]:
        """Ranks that have not joined, for the log."""
        return [RankId(rank) for rank in range(self._size) if rank not in self._joins]


def _agree(one: Join, other: Join) -> None:
    """Two ranks must be told the same; only the pages they can hold may differ. Raises ConfigError."""
    for field in Limits.__struct_fields__:
        ours, theirs = getattr(one.limits, field), getattr(other.limits, field)
        if field != "num_pages" and ours != theirs:
            flag = field.replace("_", "-")
            raise ConfigError(f"{flag} is {ours} on rank {one.rank}, {theirs} on rank {other.rank}: give all the same")
    if one.fingerprint != other.fingerprint:
        raise ConfigError(
            f"rank {one.rank} has fingerprint {one.fingerprint}, rank {other.rank} has {other.fingerprint}: "
            f"start all ranks with the same model, dtype and engine (they have {one.engine} and {other.engine})"
        )
