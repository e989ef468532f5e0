"""Who may take pages without ever leaving a request unable to finish.

The banker's algorithm (Dijkstra, EWD 623) with one fixed order, that of admission: a state is safe when each request
could grow to its own maximum once all before it have finished and given their pages back.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """Pages a request holds and may still ask for."""

    held: int
    left: int


def margins(free: int, claims: Sequence[Claim]) -> list[int]:
    """For each request, the pages to spare when it grows to its maximum after all before it have finished.

    The state is safe when none is negative.
    """
    spare = []
    for claim in claims:
        spare.append(free - claim.left)
        free += claim.held
    return spare


def tightest_before(spare: Sequence[int]) -> list[int | None]:
    """For each request, the smallest margin of those before it, which its next page narrows. None for the first."""
    tightest: list[int | None] = []
    least: int | None = None
    for margin in spare:
        tightest.append(least)
        least = margin if least is None else min(least, margin)
    return tightest


def can_admit(free: int, claims: Sequence[Claim], newcomer: Claim) -> bool:
    """Whether a newcomer may hold its pages now, last in the order, and the state stays safe."""
    if newcomer.held > free:
        return False
    return min(margins(free - newcomer.held, [*claims, newcomer])) >= 0
