"""Chooses the route of a request: a prefill and a decode group that fit each other, or a group that does both."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tandem.core.config import Limits, RoleName
from tandem.core.members import Member
from tandem.core.requests import Work, too_large


@dataclass(frozen=True)
class Crew:
    """Rank 0 of whoever works on a request."""

    heads: tuple[Member, ...]
    groups: dict[RoleName, str] = field(init=False, repr=False, compare=False)
    roles: dict[str, RoleName] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", {head.group.role: head.group.name for head in self.heads})
        object.__setattr__(self, "roles", {head.group.name: head.group.role for head in self.heads})


@dataclass(frozen=True)
class Route:
    """Rank 0 of a prefill and of a decode group with equal fingerprints, or of one colocated group.

    What follows from it is computed once, as there are few routes and many requests.
    """

    heads: tuple[Member, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Of its groups."""
    context: int = field(init=False, repr=False, compare=False)
    """Tokens that a request may have, with its answer."""
    kept_tokens_max: int = field(init=False, repr=False, compare=False)
    """Tokens of KV that whoever decodes can ever hold."""
    _limits: tuple[Limits, ...] = field(init=False, repr=False, compare=False)
    _all: Crew = field(init=False, repr=False, compare=False)
    _first: Crew = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        heads = self.heads
        context = min(head.limits.context for head in heads)
        decodes = heads[-1].limits
        for name, value in (
            ("names", tuple(head.group.name for head in heads)),
            ("context", context),
            ("kept_tokens_max", decodes.num_pages * decodes.page_size),
            ("_limits", tuple(msgspec.structs.replace(head.limits, context=context) for head in heads)),
            ("_all", Crew(heads)),
            ("_first", Crew(tuple(head for head in heads if head.group.role is not RoleName.DECODE))),
        ):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return " and ".join(self.names)

    def crew(self, work: Work) -> Crew:
        """Who gets the work: token 0 is prefill's, so decode is not needed for one token."""
        return self._all if work.max_tokens > 1 else self._first

    def obstacle(self, work: Work) -> tuple[Limits, int] | None:
        """The limits of a group that could never hold its part of the work, and the tokens of that part."""
        for head, limits in zip(self.crew(work).heads, self._limits, strict=False):
            tokens = len(work.prompt) if prefills(head) else work.last_position
            if too_large(work, limits, tokens):
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
