"""One try to compute a request's answer. When the groups had to give it up, the next one goes on where it stood."""

from collections.abc import Iterator

import msgspec

from router.placement import Route
from tandem.core.config import RoleName
from tandem.core.inputs import Submit
from tandem.core.requests import Work


class Attempt:
    """Work for the groups of a route. Its prompt holds the `first` tokens of the answer that came before."""

    def __init__(self, work: Work, route: Route, first: int = 0) -> None:
        self.work = work
        self.room = work.room
        self.route = route
        self.first = first
        """The position in the whole answer of this attempt's token 0."""
        self.heads = route.needed(work)
        """Rank 0 of whoever works on it."""
        self.groups = {head.group.role: head.group.name for head in self.heads}

    def submits(self, age_ms: int, remaining_ms: int) -> Iterator[tuple[RoleName, Submit]]:
        """What each group is told. Decode first: it is to know the room before prefill has something to hand over.

        `age_ms` is the request's, over all attempts.
        """
        for role in reversed(self.groups):
            peer = next((name for other, name in self.groups.items() if other is not role), None)
            yield role, Submit(msgspec.structs.replace(self.work, peer=peer, age_ms=age_ms), remaining_ms)
