"""Groups that end and come back: all ranks at once, as when one has crashed, and as new incarnations with nothing."""

from functools import partial
from typing import TYPE_CHECKING

from tandem.sim.clock import Span, between, stream
from tandem.sim.faults import Fault
from tandem.sim.peer_link import Known

if TYPE_CHECKING:
    from tandem.sim.node import Node
    from tandem.sim.world import World

DOWN_US: Span = (1_000, 50_000)
SOON_US: Span = (0, 1_000)
"""After a write was posted, until a group that waited for that ends."""
MISSED_US: Span = (0, 20_000)
"""Until a rank of another group notices, if the next incarnation does not call before."""
HEARD_US: Span = (0, 20_000)
"""Until the router notices, be the next incarnation there or not."""
MOST_WRITES = 30


class Restarts:
    """Ends groups and brings them back."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = stream(world.seed, "restarts")
        self._armed: dict[str, int] = {}
        self._writes: dict[str, int] = {}  # until an armed group ends

    def arm(self, group: str, until_us: int) -> None:
        """From now on, the group ends while a write from it or to it is under way: the first one, or a later one.

        It is back by a time.
        """
        self._armed[group] = until_us
        self._writes[group] = self._rng.randint(1, MOST_WRITES)

    def posted(self, *groups: str) -> None:
        """A write is under way between two groups."""
        for group in [group for group in groups if group in self._armed]:
            self._writes[group] -= 1
            if self._writes[group]:
                continue
            until_us, clock = self._armed.pop(group), self._world.clock
            soon_us = between(self._rng, SOON_US)
            down_us = min(between(self._rng, DOWN_US), until_us - clock.now_us - soon_us)
            if down_us > 0:
                clock.after(soon_us, partial(self.restart, group, down_us))

    def restart(self, group: str, down_us: int) -> None:
        """End a group for a while; nothing happens to one that is not there."""
        world, gone = self._world, self._world.ranks(group)
        if gone[0].dead:
            return
        world.swarm.acted(Fault.RESTARTS)
        world.say(f"{group} ends, for {down_us / 1000} ms")
        for node in gone:
            node.end()
        heard_us = between(self._rng, HEARD_US)
        world.clock.after(heard_us, partial(world.router.lost, group, world.epoch(group)))
        for node in world.nodes:
            for dead in gone:
                miss = partial(node.take, partial(self._miss, node, dead))
                world.clock.after(between(self._rng, MISSED_US), miss)
        world.clock.after(down_us, partial(self._return, group))
        world.clock.after(max(heard_us, down_us), partial(self._be_heard, group))

    def _miss(self, node: "Node", dead: "Node") -> None:
        known: Known | None = node.peers.known(*dead.key)
        if known is not None and known.node is dead:
            node.peers.lose(dead.key)

    def _be_heard(self, group: str) -> None:
        """The router knows of the next incarnation; if that is gone, it will know of the one after that."""
        if not self._world.ranks(group)[0].dead:
            self._world.router.back(group)

    def _return(self, group: str) -> None:
        self._world.say(f"{group} is back")
        self._world.found(group)
        self._world.introduce(group)
