"""Ends of epochs: a rank dies or freezes, its fellows notice, all part with it, and the group forms anew.

As in production a survivor keeps its engine and its pages, and nothing else: it joins as a new incarnation.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tandem.core.ids import RankId
from tandem.core.inputs import Control, Order
from tandem.core.messages import Done
from tandem.core.requests import Reason
from tandem.sim.clock import Span, between, stream
from tandem.sim.faults import Fault

if TYPE_CHECKING:
    from tandem.sim.node import Node
    from tandem.sim.world import World

DOWN_US: Span = (1_000, 50_000)
"""Until a rank that has died is there again."""
DEAD_US: Span = (0, 20_000)
"""Until a fellow notices that a rank is silent."""
MISSED_US: Span = (0, 20_000)
"""Until a rank of another group notices, if the next incarnation does not call before."""
FORM_US: Span = (0, 5_000)
"""From the last rank's being there to the ring's being formed."""
START_US: Span = (0, 2_000)
"""Until a rank of a ring that has formed turns its tick loop: the others do so before."""
LOOK_US = 5_000
"""How often a group that is to end looks whether it is done."""
HANGS_UP = 0.7
"""Share of the dead whose connections end with them. Of the others, only silence is heard."""


@dataclass(slots=True)
class Away:
    """A group whose epoch has ended, or is about to."""

    back_us: int = 0  # when all processes are there
    lost: dict[RankId, None] = field(default_factory=dict)  # whose process is another one
    forming: bool = False


class Epochs:
    """Ends groups' epochs and forms them anew."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = stream(world.seed, "epochs")
        self._away: dict[str, Away] = {}
        self.formed = 0  # times that a group has formed anew
        self.on_formed: dict[str, partial[None]] = {}  # by group: what happens next time, right afterwards

    @property
    def whole(self) -> bool:
        """No group is away."""
        return not self._away

    # what happens to ranks

    def restart(self, group: str, down_us: int) -> None:
        """All ranks die at once, and are back after a while. Nothing happens to a group that is not there."""
        ranks = self._world.ranks(group)
        if any(node.dead for node in ranks):
            return
        self._world.swarm.acted(Fault.RESTARTS)
        self._world.say(f"{group} ends, for {down_us / 1000} ms")
        for node in ranks:
            self._replace(node, down_us)
        for node in ranks:
            self._die(node)

    def crash(self, node: "Node", down_us: int) -> None:
        """One process dies; another one is in its place after a while. It may be waiting for its ring to form."""
        if node is not self._world.node(*node.key):
            return
        self._world.swarm.acted(Fault.CRASHES)
        self._world.say(f"{node.name} dies, for {down_us / 1000} ms")
        self._replace(node, down_us)
        if not node.dead:
            self._die(node)
            self._miss_fellow(node)

    def freeze(self, node: "Node", lasting_us: int, replaced_us: int | None) -> None:
        """One process stops, and wakes when its fellows have taken it for dead; or even later than its successor."""
        if node.dead or node is not self._world.node(*node.key):
            return
        world = self._world
        world.swarm.acted(Fault.ZOMBIES)
        world.say(f"{node.name} freezes for {lasting_us / 1000} ms")
        if replaced_us is None:
            self._away.setdefault(node.key[0], Away())
        else:
            self._replace(node, replaced_us)
        node.stall(lasting_us)
        self._miss_fellow(node)
        self._part(node)
        world.clock.after(lasting_us, partial(node.take, partial(self._over, node)))

    def leave(self, node: "Node", drain_us: int, down_us: int) -> None:
        """One process is told to end: its group finishes what it has, but not for ever, and then the epoch ends."""
        if node.dead or node is not self._world.node(*node.key):
            return
        world, leader = self._world, node.leader
        world.swarm.acted(Fault.LEAVES)
        world.say(f"{node.name} is told to end")
        drain = partial(self._drain, leader, node, world.clock.now_us + drain_us, down_us)
        world.send(node, leader, "store", partial(leader.take, drain))

    def _drain(self, leader: "Node", leaver: "Node", until_us: int, down_us: int) -> None:
        leader.on(Control(Order.DRAIN))
        self._world.router.watch()
        self._leave_in_time(leader, leaver, until_us, down_us)

    def _leave_in_time(self, leader: "Node", leaver: "Node", until_us: int, down_us: int) -> None:
        if leader.dead or leaver.dead:
            return
        clock = self._world.clock
        if leader.rank.drained or clock.now_us >= until_us:
            self._replace(leaver, down_us)
            self._over(leader, Reason.GROUP_LEFT)
        else:
            look_again = partial(self._leave_in_time, leader, leaver, until_us, down_us)
            clock.after(LOOK_US, partial(leader.take, look_again))

    def _replace(self, node: "Node", down_us: int) -> None:
        """Another process will be in its place."""
        clock, (group, rank) = self._world.clock, node.key
        away = self._away.setdefault(group, Away())
        away.lost[rank] = None
        away.back_us = max(away.back_us, clock.now_us + down_us)
        clock.after(down_us, partial(self._form, group))

    def _die(self, node: "Node") -> None:
        node.end()
        if node.rank.place.first and self._rng.random() < HANGS_UP:
            self._world.router.hang_up(node)
        self._part(node)

    def _miss_fellow(self, node: "Node") -> None:
        """The others of its ring notice, each at its own time. Until then they go on."""
        for fellow in node.fellows:
            if fellow is not node:
                over = partial(fellow.take, partial(self._over, fellow))
                self._world.clock.after(between(self._rng, DEAD_US), over)

    # what its fellows do

    def _over(self, node: "Node", reason: Reason = Reason.GROUP_LOST) -> None:
        """This rank knows that its epoch is over: all hear of it, and it is fenced off."""
        if node.dead:
            return
        world, place = self._world, node.rank.place
        world.say(f"{node.name} ends its epoch")
        if place.first:
            for room in list(node.routers):
                world.router.to_client(node, Done(room, reason))
            world.router.hang_up(node)
        node.end()
        node.writes.detach_all()
        for fellow in node.fellows if place.first else node.fellows[:1]:
            world.send(node, fellow, "store", partial(fellow.take, partial(self._over, fellow)))
        self._part(node)
        self._form(place.group)

    def _part(self, node: "Node") -> None:
        """It is silent from now on: ranks of other groups notice, each at its own time, and the registry shows it."""
        world = self._world
        for other in world.nodes:
            world.clock.after(between(self._rng, MISSED_US), partial(other.take, partial(self._miss, other, node)))
        if node.rank.place.first:
            world.router.look()

    def _miss(self, node: "Node", gone: "Node") -> None:
        known = node.peers.known(*gone.key)
        if known is not None and known.node is gone:
            node.peers.lose(gone.key)

    # and again

    def _form(self, group: str) -> None:
        """As soon as all processes are there and none is in the last epoch any more; who has a successor is not one."""
        world, away = self._world, self._away.get(group)
        if away is None or away.forming or world.clock.now_us < away.back_us:
            return
        if all(node.dead or node.key[1] in away.lost for node in world.ranks(group)):
            away.forming = True
            world.clock.after(between(self._rng, FORM_US), partial(self._found, group))

    def _found(self, group: str) -> None:
        world, away = self._world, self._away[group]
        away.forming = False
        if world.clock.now_us < away.back_us:  # somebody has died meanwhile
            return
        del self._away[group]
        world.say(f"{group} is back")
        world.found(group, tuple(away.lost))
        for node in world.ranks(group):
            node.stall(between(self._rng, START_US))
        world.introduce(group)
        world.router.look()
        self.formed += 1
        if (happens := self.on_formed.pop(group, None)) is not None:
            happens()
