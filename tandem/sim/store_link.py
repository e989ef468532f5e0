"""PPConsensusStore in virtual time: columns go to rank 0 over links that may lose and double what they carry."""

from typing import TYPE_CHECKING

from consensus.store import Column, Table
from tandem.core.effects import Forget, Observe
from tandem.core.events import Combined
from tandem.core.ids import LEADER
from tandem.core.messages import Ack, Facts
from tandem.sim.faults import Fault

if TYPE_CHECKING:
    from tandem.sim.node import Node

FLUSH_US = 500_000
"""How often an update that is not acknowledged is looked at: production's heartbeat does it."""
LOSS = 0.1
"""Share of the messages that are lost or doubled, if they are at all."""


class StoreLink:
    """One rank's end of the store; rank 0's also holds the table."""

    def __init__(self, node: "Node") -> None:
        place = node.rank.place
        self.column = Column(place.epoch, place.rank)
        self.table = Table(place.epoch, place.size) if place.first else None
        self._node = node
        self._watching = False
        self._changed = False  # since the last flush

    def observe(self, effect: Observe) -> None:
        """A fact is learnt."""
        self._changed = True
        self.column.set(effect.room, effect.fact)

    def forget(self, effect: Forget) -> None:
        """A room's facts are dropped."""
        self._changed = True
        self.column.delete(effect.room)

    def flush(self) -> None:
        """Send what rank 0 does not know."""
        if self._changed:
            self._flush()

    def _flush(self) -> None:
        """And look again while rank 0 has not said that it knows."""
        self._changed = False
        world = self._node.world
        facts = self.column.flush(self._now_ms)
        if facts is not None:
            self._send(facts)
        if not self._watching and self.column.unacked_age_ms(self._now_ms + 1):
            self._watching = True
            world.clock.after(FLUSH_US, self._look_again)

    def _look_again(self) -> None:
        self._watching = False
        if not self._node.dead:
            self._flush()

    def _send(self, facts: Facts) -> None:
        node = self._node
        leader = node.world.node(node.rank.place.group, LEADER)
        swarm = node.world.swarm
        if not node.rank.place.first and swarm.strikes(Fault.LOST_FACTS, LOSS):
            return
        copies = 1 + swarm.strikes(Fault.DOUBLED_FACTS, LOSS)
        for _ in range(copies):
            node.world.send(node, leader, "store", lambda: leader.store.on_facts(facts, self))

    def on_facts(self, facts: Facts, sender: "StoreLink") -> None:
        """Rank 0: merge a column and tell the rank what the group now knows."""
        assert self.table is not None
        node = self._node
        if node.dead:
            return
        touched, ack = self.table.on(facts)
        if ack is not None and not node.world.swarm.strikes(Fault.LOST_ACKS, LOSS):
            node.world.send(node, sender._node, "store", lambda: sender.on_ack(ack))
        for room in touched:
            node.on(Combined(room, self.table.combined(room)))

    def on_ack(self, ack: Ack) -> None:
        """Rank 0 has our facts."""
        self.column.on_ack(ack, self._now_ms)

    @property
    def _now_ms(self) -> int:
        return self._node.world.clock.now_us // 1000

    @property
    def entries(self) -> int:
        """Facts kept here, and in the table of all columns."""
        return len(self.column) + (len(self.table) if self.table is not None else 0)
