"""What both peer groups that are not real have in common: a router that submits, and connections that come and go."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from checking.environment import FAR_MS, Choice, Environment, hello

from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import LEADER, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Cancel
from tandem.core.requests import Reason


@dataclass(frozen=True)
class StandIn(Environment):
    """One rank of the peer group, which owns all layers, and a router. `transfers` holds one entry for each room."""

    group: ClassVar[str]
    """The group that is real."""
    peer: ClassVar[str]
    """The one that is not."""

    size: int = 1  # real ranks, a layer each
    remaining_ms: tuple[int, ...] = (FAR_MS, FAR_MS, FAR_MS)
    transfers: tuple[Any, ...] = ()
    struck: int = 0  # the room that something happens to
    aborts: int = 0  # times that the router may cancel it
    failures: int = 0  # of the peer, which ends it
    losses: int = 0  # of the connection to one real rank
    losing: frozenset[int] = field(default_factory=frozenset)  # ranks that may lose it
    closed: frozenset[int] = field(default_factory=frozenset)  # ranks without it

    def choices(self) -> Iterator[Choice]:
        """See Environment."""
        yield from super().choices()
        for number in range(len(self.works)):
            yield from self._arrivals(number)
            yield from self._transfer(number)
        for rank in sorted(self.closed):
            then = replace(self, closed=self.closed - {rank})
            yield Choice(then, (self.group, rank), PeerOpened(hello(self.peer, LEADER, (0, self.size))))
        if self.losses:
            for rank in sorted(self.losing - self.closed):
                then = replace(self, losses=self.losses - 1, closed=self.closed | {rank})
                yield Choice(then, (self.group, rank), PeerLost(self.peer, LEADER), optional=True)

    def _arrivals(self, number: int) -> Iterator[Choice]:
        transfer, work = self.transfers[number], self.works[number]
        if not transfer.submitted:
            if number == 0 or self.transfers[number - 1].submitted:
                then = self._with(number, transfer._replace(submitted=True))
                yield self._to_leader(then, Submit(work, self.remaining_ms[number]))
        elif self.aborts and number == self.struck:
            yield self._to_leader(replace(self, aborts=self.aborts - 1), Cancel(work.room, Reason.CLIENT_GONE), True)

    def _transfer(self, number: int) -> Iterator[Choice]:
        """What the peer may do about one room."""
        raise NotImplementedError

    def _to_leader(self, then: Self, event: Event, optional: bool = False) -> Choice:
        return Choice(then, (self.group, LEADER), event, optional)

    def _with(self, number: int, transfer: Any) -> Self:
        transfers = list(self.transfers)
        transfers[number] = transfer
        return replace(self, transfers=tuple(transfers))

    def _number(self, room: Room) -> int:
        return [work.room for work in self.works].index(room)

    def _may_connect(self, rank: int) -> bool:
        return rank in self.closed or (self.losses > 0 and rank in self.losing)
