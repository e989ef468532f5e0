"""What happens as soon as a request is in a given state on rank 0 of a group: a client leaves, an operator speaks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from colocated import request as alone
from decode import intake
from prefill import handoff
from tandem.core.config import RoleName
from tandem.core.ids import Room
from tandem.core.role import Role
from tandem.sim.node import Node
from tandem.sim.world import World

STATES: dict[RoleName, tuple[str, ...]] = {
    RoleName.PREFILL: tuple(state.value for state in handoff.State if state is not handoff.State.GONE),
    RoleName.DECODE: tuple(state.value for state in intake.State if state is not intake.State.GONE),
    RoleName.COLOCATED: tuple(state.value for state in alone.State if state is not alone.State.GONE),
}
"""Where a request can be. What is flying is running, seen right after its tick was launched."""


@dataclass(frozen=True, slots=True)
class Trap:
    """One state of one group, and what happens to the first room in it that it can happen to."""

    group: str
    state: str
    spring: Callable[[Room], bool]  # False: not to this one


class Traps:
    """Looks at rank 0 of each group after each tick."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set: list[Trap] = []

    def set(self, trap: Trap) -> None:
        """From now on."""
        if not self._set:
            self._world.watchers.append(self.look)
        self._set.append(trap)

    def look(self, node: Node) -> None:
        """Spring what this group's requests have walked into."""
        if not self._world.swarm.acting:
            return
        for trap in [trap for trap in self._set if trap.group == node.rank.place.group]:
            if any(trap.spring(room) for room in rooms_in(node.rank.scheduler.role, trap.state)):
                self._set.remove(trap)


def rooms_in(role: Role, state: str) -> list[Room]:
    """The rooms of a role's table that are in a state, in the order of the table."""
    requests: dict[Room, Any] = vars(role)["_requests"]
    return [room for room, request in requests.items() if request.state.value == state]
