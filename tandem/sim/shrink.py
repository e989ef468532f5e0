"""Finds the smallest variant of a failing seed: fewer requests, fewer kinds of faults, fewer groups and ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tandem.sim.case import Variant, draw

BUDGET = 120
"""Runs that shrinking may take."""
SMALL = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2))
"""Rings to try, the smallest first."""

Fails = Callable[[Variant], bool]
T = TypeVar("T")


def shrink(seed: int, failing: Variant, fails: Fails, budget: int = BUDGET) -> Variant:
    """Take away what can go while the seed still `fails` the same way, until nothing more can or the budget is spent.

    Delta debugging (Zeller, Hildebrandt 2002), over pairs, ranks, requests and kinds in turn.
    """
    left = budget
    smallest = failing
    candidates = smaller(seed, smallest)
    while left and (candidate := next(candidates, None)) is not None:
        left -= 1
        if fails(candidate):
            smallest, candidates = candidate, smaller(seed, candidate)
    return smallest


def smaller(seed: int, variant: Variant) -> Iterator[Variant]:
    """Variants with less, the boldest first."""
    case = draw(seed, variant)
    for pairs in range(1, case.pairs):
        yield replace(variant, pairs=pairs)
    for ring in SMALL:
        sizes = tuple(group.size for group in case.cluster.groups)
        if case.pairs * sum(ring) < sum(sizes):
            yield replace(variant, ranks=ring)
    for kept in _without_a_part([request.number for request in case.requests]):
        yield replace(variant, only=kept)
    for kinds in _without_a_part(case.kinds):
        gone = [kind for kind in case.kinds if kind not in kinds]
        yield replace(variant, without=(*variant.without, *gone))


def _without_a_part(whole: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The whole without each of its halves, then quarters, down to single ones."""
    size = (len(whole) + 1) // 2
    while size:
        for start in range(0, len(whole), size):
            yield (*whole[:start], *whole[start + size :])
        size = (size + 1) // 2 if size > 1 else 0
