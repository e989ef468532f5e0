"""Chooses the pair of groups for a request: a prefill group and a decode group that fit each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.config import RoleName
from tandem.core.members import Member


@dataclass(frozen=True)
class Pair:
    """Rank 0 of a prefill group and of a decode group with equal fingerprints."""

    prefill: Member
    decode: Member

    @property
    def names(self) -> tuple[str, str]:
        return self.prefill.group.name, self.decode.group.name


def pairs(heads: Sequence[Member]) -> list[Pair]:
    """Every pair that can work together, in the order of their names."""
    heads = sorted(heads, key=lambda head: head.group.name)
    return [
        Pair(prefill, decode)
        for prefill in heads
        if prefill.group.role is RoleName.PREFILL
        for decode in heads
        if decode.group.role is RoleName.DECODE and decode.fingerprint == prefill.fingerprint
    ]


class RoundRobin:
    """The pair that waited longest; among equals the one whose groups waited longest, so that no group is hit twice."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[tuple[str, str], int] = {}

    def choose(self, heads: Sequence[Member]) -> Pair | None:
        """Of the usable groups' rank 0s; None when no two fit."""
        able = pairs(heads)
        if not able:
            return None
        self._last = {pair.names: self._last.get(pair.names, 0) for pair in able}
        groups: dict[str, int] = {}
        for names, turn in self._last.items():
            for name in names:
                groups[name] = max(groups.get(name, 0), turn)
        chosen = min(able, key=lambda p: (self._last[p.names], sum(groups[name] for name in p.names)))
        self._turn += 1
        self._last[chosen.names] = self._turn
        return chosen
