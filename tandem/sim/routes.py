"""Who may serve a request, and where one goes on that its groups had to give up."""

from collections.abc import Sequence

from tandem.core.config import Group, RoleName
from tandem.core.inputs import Order
from tandem.sim.clock import stream

Route = tuple[str, ...]
"""Names of a prefill and of a decode group, or of one colocated group."""


def routes(groups: Sequence[Group]) -> tuple[Route, ...]:
    """Every route that these groups make."""
    names = {role: [group.name for group in groups if group.role is role] for role in RoleName}
    alone = [(name,) for name in names[RoleName.COLOCATED]]
    pairs = [(prefill, decode) for prefill in names[RoleName.PREFILL] for decode in names[RoleName.DECODE]]
    return (*alone, *pairs)


class Rerouting:
    """As the router does it, but at random: a drained group is given nothing new, and finishes what it has begun."""

    def __init__(self, seed: int, groups: Sequence[Group]) -> None:
        self._routes = routes(groups)
        self._rng = stream(seed, "rerouting")
        self._drained: dict[str, None] = {}
        self._lost: dict[str, None] = {}

    def on_order(self, group: str, order: Order) -> None:
        """An operator has told a group to drain, or to take requests again."""
        if order is Order.DRAIN:
            self._drained[group] = None
        elif order is Order.RESUME:
            self._drained.pop(group, None)

    def on_lost(self, group: str) -> None:
        """A group is gone, and with it what operators have told it."""
        self._lost[group] = None
        self._drained.pop(group, None)

    def on_back(self, group: str) -> None:
        """It is there again."""
        self._lost.pop(group, None)

    def able(self, route: Route) -> bool:
        """Whether all of its groups are there."""
        return self._lost.keys().isdisjoint(route)

    def after(self, before: Route) -> Route | None:
        """The route of the next attempt: any that can be taken, the one before included; None if there is none."""
        willing = [route for route in self._routes if route == before or self._drained.keys().isdisjoint(route)]
        able = [route for route in willing if self.able(route)]
        return self._rng.choice(able) if able else None
