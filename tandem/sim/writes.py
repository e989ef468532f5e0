"""Posted writes in virtual time: the bytes land at one moment, the end is told later, or something goes wrong."""

from functools import partial
from typing import TYPE_CHECKING

from tandem.core.effects import Post
from tandem.core.events import Moved, Written
from tandem.core.ids import PageId
from tandem.sim.clock import between
from tandem.sim.faults import Fault
from tandem.sim.oracle import check_write

if TYPE_CHECKING:
    from tandem.sim.node import Node

MOST_LATE_US = 200_000
"""After an unsettled end, until what is left of the write lands."""
SLOWER = 50
FAILING, SLOW = 0.02, 0.05
"""Shares of the writes, if they fail or are slow at all."""


def post(node: "Node", effect: Post) -> None:
    """Begin a write. One that fails lands in part or never; if it is unsettled, that may be long after its end."""
    world = node.world
    peer = world.node(effect.peer, effect.rank)
    settled = world.swarm.strikes(Fault.FAILED_WRITES, FAILING)
    unsettled = not settled and world.swarm.strikes(Fault.UNSETTLED_WRITES, FAILING)
    fails = settled or unsettled
    landing = effect.blocks[: node.rng.randrange(len(effect.blocks) + 1)] if fails else effect.blocks
    landing_us = between(node.rng, world.pace.write_us)
    if world.swarm.strikes(Fault.SLOW_WRITES, SLOW):
        landing_us *= SLOWER
    _check(effect, node, peer)

    def told(result: Written) -> None:
        node.on(Moved(effect.ticket, result))

    def landed() -> None:
        _land(effect, landing, node, peer)
        result = Written.FAILED_SETTLED if fails else Written.OK
        world.clock.after(between(node.rng, (0, landing_us)), partial(told, result))

    if unsettled:
        world.unsettled[effect.room] = (node.rank.place.group, effect.peer)
        world.clock.after(landing_us, partial(told, Written.FAILED_UNSETTLED))
        late_us = landing_us + between(node.rng, (0, MOST_LATE_US))
        world.clock.after(late_us, partial(_land, effect, landing, node, peer))
    else:
        world.clock.after(landing_us, landed)


def _land(effect: Post, landing: tuple[tuple[PageId, PageId], ...], node: "Node", peer: "Node") -> None:
    _check(effect, node, peer)
    peer.ledger.wrote(effect.room, [destination for _, destination in landing])
    for source, destination in landing:
        peer.memory.block(effect.layer, destination)[:] = node.memory.block(effect.layer, source)


def _check(effect: Post, node: "Node", peer: "Node") -> None:
    """On both ranks, and on both groups' rank 0, which are the first to give pages to others."""
    check_write(effect, node.rank, peer.rank)
    check_write(effect, node.leader.rank, peer.leader.rank)
