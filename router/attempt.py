"""One try to compute a request's answer. When the groups had to give it up, the next one goes on where it stood."""

from collections.abc import Iterator, Sequence

import msgspec

from router.placement import Route
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
        crew = route.crew(work)
        self.heads = crew.heads
        """Rank 0 of whoever works on it."""
        self.groups = crew.groups
        self.roles = crew.roles

    def submits(self, age_ms: int, remaining_ms: int, *, whole: bool = False) -> Iterator[tuple[str, Submit]]:
        """What each group is told. Decode first: it is to know the room before prefill has something to hand over.

        `age_ms` is the request's, over all attempts; `whole` as in Submit.
        """
        names = list(self.roles)
        peers: Sequence[str | None] = names if len(names) > 1 else [None]
        for name, peer in zip(reversed(names), peers, strict=True):
            yield name, Submit(msgspec.structs.replace(self.work, peer=peer, age_ms=age_ms), remaining_ms, whole)
