"""By which rule a route is chosen among those that can be taken."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from router.cost import Sight, ranked
from router.placement import Route
from tandem.core.config import PolicyName

Look = Callable[[Sequence[Route]], Sight]
"""What is known of these routes at this moment; it costs something."""


class Policy(Protocol):
    """Chooses among routes. `looks`: by what the groups have cached, too; else no prompt need be hashed."""

    looks: bool

    def choose(self, able: Sequence[Route], look: Look) -> Route | None:
        """One of these; None when there is none."""
        ...


class CacheAware:
    """The cheapest by all that is known: see `router.cost`."""

    looks = True

    def choose(self, able: Sequence[Route], look: Look) -> Route | None:
        """See Policy."""
        return ranked(able, look(able))[0].route if able else None


class PowerOfTwo:
    """Of two that are drawn, the one with less to do, whatever is cached. Equal seeds draw equally."""

    looks = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._turn = 0

    def choose(self, able: Sequence[Route], look: Look) -> Route | None:
        """See Policy."""
        if not able:
            return None
        first = able[self._draw(len(able))]
        others = [route for route in able if route.names != first.names] or [first]
        drawn = (first, others[self._draw(len(others))])
        return min(ranked(drawn, look(drawn)), key=lambda one: (one.parts.load, one.route.names)).route

    def _draw(self, count: int) -> int:
        self._turn += 1
        digest = blake2b(f"{self._seed} {self._turn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % count


class RoundRobin:
    """The route that waited longest; of equals the one whose groups waited longest, so that no group is hit twice."""

    looks = False

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[tuple[str, ...], int] = {}

    def choose(self, able: Sequence[Route], look: Look) -> Route | None:
        """See Policy."""
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


POLICIES: dict[PolicyName, Callable[[], Policy]] = {
    "cache_aware": CacheAware,
    "round_robin": RoundRobin,
    "power_of_two": PowerOfTwo,
}


def policy_of(name: PolicyName, seed: int) -> Policy:
    """`seed`: routers side by side must not draw alike, or they would all crowd the same groups."""
    return PowerOfTwo(seed) if name == "power_of_two" else POLICIES[name]()
