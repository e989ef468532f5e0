"""Posted writes in virtual time: the bytes land at one moment, the end is told later, or something goes wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvtransfer.checksums import digests
from tandem.core.effects import Post
from tandem.core.events import Moved, Written
from tandem.core.ids import PageId
from tandem.sim.clock import between, stream
from tandem.sim.faults import Fault
from tandem.sim.oracle import check_read, check_written
from tandem.sim.peer_link import Known

if TYPE_CHECKING:
    from tandem.sim.node import Node

MOST_LATE_US = 200_000
"""After an unsettled end, until what is left of the write lands."""
SLOWER = 50
SHARES = {
    Fault.FAILED_WRITES: (0.02, 0.05, 0.2),
    Fault.UNSETTLED_WRITES: (0.02, 0.05, 0.2),
    Fault.CORRUPTED_WRITES: (0.03, 0.1),
    Fault.SLOW_WRITES: (0.05, 0.2),
}
"""Of the writes that this happens to, if it happens at all: one of these in each run."""


@dataclass(slots=True, eq=False)
class Write:
    """One that has been posted."""

    effect: Post
    receiver: Known
    landing: tuple[tuple[PageId, PageId], ...]  # of its blocks, if anything may land
    digests: tuple[int, ...]
    fails: bool
    corrupt: bool
    orphaned: bool = False  # its sender has died before it could land
    content: Sequence[bytes | memoryview] | None = None  # of the blocks, once source pages may be used for others


class Writes:
    """Those of one rank."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._world = node.world
        self._posted: Counter[str] = Counter()  # their ends have not been told, by the group they go to
        self._afloat: dict[int, Write] = {}  # by ticket: they may still land
        shares = stream(node.world.seed, "shares of writes")
        self._shares = {kind: shares.choice(each) for kind, each in SHARES.items()}

    def posted(self, group: str) -> int:
        """How many to a group have not ended."""
        return self._posted[group]

    def post(self, effect: Post) -> None:
        """Begin one. One that fails lands in part or never; if it is unsettled, that may be long after its end."""
        node, clock = self._node, self._world.clock
        receiver = node.peers.known(effect.peer, effect.rank)
        if receiver is None:
            clock.after(0, partial(node.on, Moved(effect.ticket, Written.FAILED_SETTLED)))
            return
        settled = self._strikes(Fault.FAILED_WRITES)
        cut = self._world.cut_until_us(node, receiver.node) is not None
        unsettled = not settled and (cut or self._strikes(Fault.UNSETTLED_WRITES))
        fails = settled or unsettled
        corrupt = not fails and self._strikes(Fault.CORRUPTED_WRITES)
        landing = effect.blocks[: node.rng.randrange(len(effect.blocks) + 1)] if fails else effect.blocks
        took_us = between(node.rng, self._world.pace.write_us)
        if self._strikes(Fault.SLOW_WRITES):
            took_us *= SLOWER
        sampled = [effect.blocks[place][0] for place in effect.sampled]
        write = Write(effect, receiver, landing, digests(node.memory, effect.layer, sampled), fails, corrupt)
        self._posted[effect.peer] += 1
        self._afloat[effect.ticket] = write
        self._check(write)
        if unsettled:
            clock.after(took_us, partial(self._told, write, Written.FAILED_UNSETTLED))
            clock.after(took_us + between(node.rng, (0, MOST_LATE_US)), partial(self._land, write))
        else:
            clock.after(took_us, partial(self._arrive, write, took_us))

    def _strikes(self, kind: Fault) -> bool:
        return self._world.swarm.strikes(kind, self._shares[kind])

    def _arrive(self, write: Write, took_us: int) -> None:
        """It lands, or is found not to be able to; its end is told later."""
        node = self._node
        if not self._land(write):
            result = node.rng.choice([Written.FAILED_SETTLED, Written.FAILED_UNSETTLED])
        else:
            result = Written.FAILED_SETTLED if write.fails else Written.OK
        self._world.clock.after(between(node.rng, (0, took_us)), partial(self._told, write, result))

    def _told(self, write: Write, result: Written) -> None:
        self._posted[write.effect.peer] -= 1
        if result is Written.FAILED_UNSETTLED and self._world.sequels:
            self._world.sequels.popleft()(self._node, write.receiver.node)
        self._node.on(Moved(write.effect.ticket, result, write.digests if result is Written.OK else ()))
        self._node.peers.write_ended()

    def _land(self, write: Write) -> bool:
        """Whether it could: nothing lands in a rank that is gone, or that has cut our group off since we met.

        What a rank that has died had posted may be held up on its way for as long as any other write.
        """
        if self._node.dead and not write.orphaned:
            write.orphaned = True
            self._world.clock.after(between(self._node.rng, (0, MOST_LATE_US)), partial(self._land, write))
            return False
        del self._afloat[write.effect.ticket]
        peer, effect = write.receiver.node, write.effect
        if not self._can_land(write):
            self._world.fenced_writes += not peer.dead
            self._world.say(f"write {effect.ticket} of {self._node.name} cannot land in {peer.name} any more")
            return False
        self._check(write)
        peer.ledger.wrote(effect.room, [destination for _, destination in write.landing])
        for (_, destination), block in zip(write.landing, self._content(write), strict=True):
            peer.memory.block(effect.layer, destination)[:] = block
        if write.corrupt:
            self._flip_a_bit(peer.memory.block(effect.layer, write.landing[0][1]))
        return True

    def _flip_a_bit(self, block: memoryview) -> None:
        block[self._node.rng.randrange(len(block))] ^= 1 << self._node.rng.randrange(8)

    def _can_land(self, write: Write) -> bool:
        peer = write.receiver.node
        return not peer.dead and peer.peers.fences[self._node.key[0]] == write.receiver.fence

    def _content(self, write: Write) -> Sequence[bytes | memoryview]:
        if write.content is not None:
            return write.content
        return [self._node.memory.block(write.effect.layer, source) for source, _ in write.landing]

    def detach(self, group: str) -> None:
        """A fence of ours is done: what has left may still land over there, but is not read from our pages any more."""
        for write in self._afloat.values():
            if write.effect.peer == group:
                write.content = [bytes(block) for block in self._content(write)]

    def detach_all(self) -> None:
        """This incarnation is over, and the pages go to the next one."""
        for group in dict.fromkeys(write.effect.peer for write in self._afloat.values()):
            self.detach(group)

    def _check(self, write: Write) -> None:
        """On the ranks whose pages it touches, and on their rank 0, which is the first to give pages to others."""
        node, peer = self._node, write.receiver.node
        if write.content is None and not node.dead:
            check_read(write.effect, node.rank)
            check_read(write.effect, node.leader.rank)
        if self._can_land(write):
            check_written(write.effect, peer.rank)
            check_written(write.effect, peer.leader.rank)
