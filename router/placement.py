"""Chooses the route of a request: a prefill and a decode group that fit each other, or a group that does both."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tandem.core.config import Limits, RoleName
from tandem.core.members import Member
from tandem.core.requests import Work, too_large


@dataclass(frozen=True)
class Route:
    """Rank 0 of a prefill and of a decode group with equal fingerprints, or of one colocated group."""

    heads: tuple[Member, ...]

    def __str__(self) -> str:
        return " and ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its groups."""
        return tuple(head.group.name for head in self.heads)

    @property
    def context(self) -> int:
        """Tokens that a request may have, with its answer."""
        return min(head.limits.context for head in self.heads)

    @property
    def kept_tokens_max(self) -> int:
        """Tokens of KV that whoever decodes can ever hold."""
        return min(head.limits.num_pages * head.limits.page_size for head in self.heads if not prefills(head))

    def needed(self, work: Work) -> tuple[Member, ...]:
        """Who gets the work: token 0 is prefill's, so decode is not needed for one token."""
        return tuple(head for head in self.heads if head.group.role is not RoleName.DECODE or work.max_tokens > 1)

    def obstacle(self, work: Work) -> tuple[Limits, int] | None:
        """The limits of a group that could never hold its part of the work, and the tokens of that part."""
        for head in self.needed(work):
            tokens = len(work.prompt) if prefills(head) else work.last_position
            if too_large(work, msgspec.structs.replace(head.limits, context=self.context), tokens):
                return head.limits, tokens
        return None


def prefills(head: Member) -> bool:
    """Whether a group hands its requests over."""
    return head.group.role is RoleName.PREFILL


def routes(heads: Sequence[Member]) -> list[Route]:
    """Every route that can be taken, in the order of names; colocated groups come first."""
    heads = sorted(heads, key=lambda head: head.group.name)
    alone = [Route((head,)) for head in heads if head.group.role is RoleName.COLOCATED]
    return alone + [
        Route((prefill, decode))
        for prefill in heads
        if prefill.group.role is RoleName.PREFILL
        for decode in heads
        if decode.group.role is RoleName.DECODE and decode.fingerprint == prefill.fingerprint
    ]


class RoundRobin:
    """The route that waited longest; of equals the one whose groups waited longest, so that no group is hit twice."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[tuple[str, ...], int] = {}

    def choose(self, able: Sequence[Route]) -> Route | None:
        """One of these; None when there is none."""
        if not able:
            return None
        self._last = {route.names: self._last.get(route.names, 0) for route in able}
        groups: dict[str, int] = {}
        for names, turn in self._last.items():
            for name in names:
                groups[name] = max(groups.get(name, 0), turn)
        chosen = min(able, key=lambda route: (self._last[route.names], max(groups[name] for name in route.names)))
        self._turn += 1
        self._last[chosen.names] = self._turn
        return chosen
