"""Sessions that a prefill rank has ended: a decode rank that still speaks in one must begin anew. Bounded."""

from tandem.core.ids import Epoch, RankId

MAX_PARTED = 4096
"""Decode incarnations remembered, the oldest dropped first."""
RETIRED = 1 << 62
"""Later than any session."""


class Parted:
    """The last session of each decode incarnation, by its identity on the socket."""

    def __init__(self, limit: int = MAX_PARTED) -> None:
        self._last: dict[bytes, int] = {}
        self._epochs: dict[tuple[str, RankId], Epoch] = {}
        self._limit = limit

    def past(self, group: str, rank: RankId, epoch: Epoch) -> bool:
        """Whether this rank has called in a later epoch before: then somebody has woken who has a successor."""
        newest = max(epoch, self._epochs.pop((group, rank), epoch))
        self._epochs[group, rank] = newest
        if len(self._epochs) > self._limit:
            del self._epochs[next(iter(self._epochs))]
        return epoch < newest

    def end(self, identity: bytes, session: int) -> None:
        """A session has ended; so have those before it. RETIRED: the incarnation has a successor."""
        last = max(session, self._last.pop(identity, 0))
        self._last[identity] = last
        if len(self._last) > self._limit:
            del self._last[next(iter(self._last))]

    def over(self, identity: bytes, session: int) -> bool:
        """Whether it has ended."""
        return session <= self._last.get(identity, -1)

    def retired(self, identity: bytes) -> bool:
        """Whether the incarnation has a successor."""
        return self._last.get(identity) == RETIRED
