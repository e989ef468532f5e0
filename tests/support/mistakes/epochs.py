"""Ranks that outlive an epoch and bring something along, and what the dead leave behind."""

from mistakes.ranks import Patch

from decode.receiver import KVReceiver
from kvtransfer.parted import Parted
from tandem.core.effects import Observe
from tandem.core.events import PeerLost
from tandem.core.messages import Fact
from tandem.core.rank import Rank
from tandem.sim.node import Node
from tandem.sim.world import World
from tandem.sim.writes import Write, Writes


def a_survivor_keeps_its_rooms(patch: Patch) -> None:
    """Who joins again goes on with the scheduler that it has."""
    found = World.found

    def keeping(world: World, name: str, lost=()) -> None:
        before = world.ranks(name)
        found(world, name, lost)
        for node, survivor in zip(world.ranks(name), before, strict=False):
            if node.key[1] not in lost:
                _take_over(node, survivor)

    patch.setattr(World, "found", keeping)


def _take_over(node: Node, survivor: Node) -> None:
    node.rank.scheduler = survivor.rank.scheduler
    if node.rank._head is not None:
        node.rank._head._scheduler = survivor.rank.scheduler


def a_message_of_an_old_epoch_is_taken(patch: Patch) -> None:
    """Whoever sends it, what comes over the ring is for this epoch."""
    patch.setattr(Rank, "_is_current", lambda rank, message: True)


def a_sleepers_hello_replaces_its_successor(patch: Patch) -> None:
    """Who calls last is the rank, whichever epoch it is of."""
    patch.setattr(Parted, "past", lambda parted, group, rank, epoch: False)


def the_dead_are_taken_for_quiet(patch: Patch) -> None:
    """A receiver that has lost a peer says that nothing of it can land any more, and fences nothing."""
    on_event = KVReceiver.on_event

    def quiet(receiver: KVReceiver, event):
        effects = on_event(receiver, event)
        if isinstance(event, PeerLost):
            failed = [each.room for each in effects if isinstance(each, Observe) and each.fact.failed]
            effects += [Observe(room, Fact(fenced=True)) for room in failed]
        return effects

    patch.setattr(KVReceiver, "on_event", quiet)


def a_zombies_write_lands(patch: Patch) -> None:
    """What a fence cuts off is not what has been posted before it, or by somebody who does not know of it."""
    patch.setattr(Writes, "_can_land", lambda writes, write: not write.receiver.node.dead)


def a_survivor_is_not_fenced(patch: Patch) -> None:
    """What was meant for the last epoch still lands in the pages, which the next one uses."""
    can_land = Writes._can_land

    def kept(writes: Writes, write: Write) -> bool:
        peer = write.receiver.node
        successor = writes._world.node(*peer.key)
        return can_land(writes, write) or (peer.dead and successor is not peer and successor.engine is peer.engine)

    patch.setattr(Writes, "_can_land", kept)
