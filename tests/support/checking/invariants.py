"""What holds in every state: ranks agree, and nobody gives away pages that somebody may still touch."""

from checking.frozen import Frozen
from checking.summary import Summary
from checking.world import AROUND, NODES, State, World

from tandem.core.config import Group, RoleName
from tandem.core.errors import Divergence
from tandem.sim.oracle import StrayAccess


class Invariants:
    """Looks at each combination of ranks, and of ranks and surroundings, once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._agreed: set[State] = set()
        self._sound: set[State] = set()

    def check(self, state: State) -> None:
        """Raises Divergence or StrayAccess."""
        world = self._world
        nodes = state[NODES : world.first_channel]
        if nodes not in self._agreed:
            for group in world.groups.values():
                self._check_group(state, group)
            self._agreed.add(nodes)
        sound = (state[AROUND], *nodes)
        if sound not in self._sound:
            world.around(state).check(lambda where: world.summary(state, world.at[where]).held)
            self._sound.add(sound)

    def _check_group(self, state: State, group: Group) -> None:
        """A forward may use its pages on the ranks before it too: those have stepped whatever it has stepped."""
        first = self._world.at[group.name, 0]
        seen = [self._world.summary(state, first + rank) for rank in range(group.size)]
        schedulers: dict[int, Frozen] = {}
        for rank, one in enumerate(seen):
            if schedulers.setdefault(one.tick, one.scheduler) != one.scheduler:
                raise Divergence(f"{group.name}.{rank} has another state at its tick than a rank before it")
            self._check_host(one, seen[: rank + 1])
            used = [(room, pages, seen[: rank + 1]) for room, pages in (*one.launched, *one.copied)]
            if group.role is RoleName.DECODE:
                used += [(room, pages, [one]) for room, pages in one.flying]
            for room, pages, holders in used:
                for strays in filter(None, (pages - holder.held[room] for holder in holders)):
                    raise StrayAccess(
                        f"pages {sorted(strays)} of {room} are used by a forward or a copy, but have been given away"
                    )

    def _check_host(self, one: Summary, holders: list[Summary]) -> None:
        """What is copied to host memory finds its pages there."""
        for room, pages in one.saving:
            for holder in holders:
                if strays := pages - holder.hosted[room]:
                    raise StrayAccess(f"host pages {sorted(strays)} are written for {room}, but have been given away")

    def left(self, state: State) -> list[str]:
        """What is still there, to be asked when nothing has to happen any more."""
        world = self._world
        places = enumerate(world.places)
        left = [f"{where}: {what}" for index, where in places for what in world.summary(state, index).left]
        return left + world.around(state).missing()
