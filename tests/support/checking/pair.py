"""What surrounds a prefill group and a decode group that are both real: a router, and writes that take their time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import msgspec
from checking.environment import FAR_MS, Answer, Choice, Environment, Held, Where, must_hold

from tandem.core.effects import Effect, Post
from tandem.core.events import Moved, Written
from tandem.core.ids import LEADER, PageId, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Cancel
from tandem.core.requests import Reason

PREFILL, DECODE = "p0", "d0"


class Write(NamedTuple):
    """A posted write whose end has not been told."""

    sender: int
    receiver: int
    room: Room
    ticket: int
    sources: frozenset[PageId]
    targets: frozenset[PageId]


@dataclass(frozen=True)
class Router(Environment):
    """Submits each request to both groups, and may cancel the first one at either or both."""

    sizes: tuple[int, int] = (1, 1)
    submitted: tuple[int, int] = (0, 0)  # requests, to prefill and to decode
    aborts: tuple[int, int] = (0, 0)  # times that the first room may be cancelled at prefill and at decode
    bad_writes: int = 0
    writes: tuple[Write, ...] = ()

    def choices(self) -> Iterator[Choice]:
        """See Environment."""
        yield from super().choices()
        for side, (group, peer) in enumerate(((PREFILL, DECODE), (DECODE, PREFILL))):
            where = (group, LEADER)
            if self.submitted[side] < len(self.works):
                work = msgspec.structs.replace(self.works[self.submitted[side]], peer=peer)
                then = replace(self, submitted=_plus(self.submitted, side, 1))
                yield Choice(then, where, Submit(work, FAR_MS))
            if self.submitted[side] and self.aborts[side]:
                then = replace(self, aborts=_plus(self.aborts, side, -1))
                yield Choice(then, where, Cancel(self.works[0].room, Reason.CLIENT_GONE), True)
        yield from self._ends_of_writes()

    def _ends_of_writes(self) -> Iterator[Choice]:
        """The writes between two ranks end one after the other."""
        for link in dict.fromkeys((write.sender, write.receiver) for write in self.writes):
            first = next(write for write in self.writes if (write.sender, write.receiver) == link)
            then = replace(self, writes=tuple(write for write in self.writes if write != first))
            where = (PREFILL, first.sender)
            yield Choice(then, where, Moved(first.ticket, Written.OK))
            if self.bad_writes:
                then = replace(then, bad_writes=self.bad_writes - 1)
                yield Choice(then, where, Moved(first.ticket, Written.FAILED_SETTLED), True)

    def told(self, where: Where, effect: Effect) -> Self:
        """What is said between the groups is under way on links of their own."""
        if not isinstance(effect, Post):
            return self
        sources, targets = (frozenset(pages) for pages in zip(*effect.blocks, strict=True))
        write = Write(where[1], effect.rank, effect.room, effect.ticket, sources, targets)
        return replace(self, writes=(*self.writes, write))

    def check(self, held: Held) -> None:
        """A write reads pages of its room and lands in pages of its room, on every rank."""
        for write in self.writes:
            for rank in range(write.sender + 1):
                must_hold(held((PREFILL, rank)), write.room, write.sources, "read by a write")
            for rank in range(self.sizes[1]):
                must_hold(held((DECODE, rank)), write.room, write.targets, "written")

    def missing(self) -> list[str]:
        """Each request has ended in one of the groups."""
        ends = {room for (_, room), answer in self.answers if answer.ended is not None}
        lost = [f"{work.room} has no answer" for work in self.works if work.room not in ends]
        for work in self.works[1:]:
            if self.spares and self.answer(DECODE, work.room) != Answer(work.max_tokens, Reason.LENGTH):
                lost.append(f"{work.room} has ended otherwise, though nothing has happened to it")
        return lost

    def may_touch(self, where: Where) -> bool:
        """Writes end at prefill ranks. What comes from the other group is on links of its own."""
        return where[0] == PREFILL


def _plus(pair: tuple[int, int], side: int, by: int) -> tuple[int, int]:
    return (pair[0] + by, pair[1]) if side == 0 else (pair[0], pair[1] + by)
