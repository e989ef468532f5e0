"""Entries of ranks that do not run."""

from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId
from tandem.core.members import Member


def member(group: str = "p0", rank: int = 0, incarnation: int = 1) -> Member:
    """One of a group of two."""
    place = Group(RoleName.PREFILL, group, (2, 2))
    return Member(place, RankId(rank), incarnation, 0, "h", "f", "m", "ipc:///r", "ipc:///h", "h:1", Limits())
