"""The lattice of local facts: how one rank's knowledge grows, and how a group's ranks combine.

Both operations are commutative, associative and idempotent, so duplicated, reordered or resent updates do no harm.
Good news needs everyone, bad news needs anyone, memory is freed only when everyone is quiet.
"""

from collections.abc import Iterable

import msgspec

from tandem.core.messages import Fact, Progress

BOTTOM = Fact()
"""What a rank is taken to know of a room it has no record of."""


def join(old: Fact, new: Fact) -> Fact:
    """One rank learns more: every field only grows."""
    return Fact(
        max(old.progress, new.progress),
        old.failed or new.failed,
        old.quiet or new.quiet,
        max(old.backups, new.backups),
        old.fenced or new.fenced,
        old.corrupt or new.corrupt,
    )


def meet(facts: Iterable[Fact]) -> Fact:
    """What a whole group knows: the least progress, any failure, everyone's quiet. `facts` holds one per rank.

    It is fenced once all that were not quiet by themselves have been.
    """
    every = tuple(facts)
    return Fact(
        min(fact.progress for fact in every),
        any(fact.failed for fact in every),
        all(fact.quiet for fact in every),
        min(fact.backups for fact in every),
        any(fact.fenced for fact in every) and all(fact.quiet or fact.fenced for fact in every),
        any(fact.corrupt for fact in every),
    )


def without_transfer(fact: Fact) -> Fact:
    """What of a fact goes through the store where ring votes agree on the transfer itself."""
    return msgspec.structs.replace(
        fact, progress=min(fact.progress, Progress.WAITING_FOR_INPUT), failed=False, quiet=False
    )
