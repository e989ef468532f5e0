"""What a prefill group sees of a decode group and of its own writes, in every order that the protocol allows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from checking.environment import Choice, Held, Where, must_hold
from checking.stand_in import StandIn

from tandem.core.effects import Effect, Post, TellPeer
from tandem.core.events import Moved, Written
from tandem.core.ids import LEADER, PageId
from tandem.core.inputs import FirstToken
from tandem.core.messages import Cancelled, Commit, Grant, Quiet
from tandem.core.requests import Reason, pages_for
from tandem.sim.oracle import StrayAccess

GROUP, PEER = "p0", "d0"
"""The group that is real, and the one that is not."""
PAGE_SIZE = 2
"""Of both."""


class Write(NamedTuple):
    """A posted write whose end has not been told: it reads these pages."""

    rank: int
    ticket: int
    pages: frozenset[PageId]


class Transfer(NamedTuple):
    """One room, as a decode group of one rank has it."""

    submitted: bool = False  # to prefill
    granted: frozenset[int] = frozenset()  # prefill ranks that the grant has reached
    writes: tuple[Write, ...] = ()
    committed: int = 0  # tokens of layers
    first: bool = False  # token 0 is here
    ended: bool = False  # early: by our word or prefill's
    quiet: bool = False


@dataclass(frozen=True)
class DecodeStandIn(StandIn):
    """One decode rank that owns all layers, the writes into its memory, and a router."""

    group, peer = GROUP, PEER

    transfers: tuple[Transfer, ...] = (Transfer(), Transfer())
    bad_writes: int = 0  # writes that may fail, and are settled

    def _transfer(self, number: int) -> Iterator[Choice]:
        yield from self._grants(number)
        yield from self._writes(number)

    def _grants(self, number: int) -> Iterator[Choice]:
        """Decode cancels a room before its grants or after them: one link has rank 0's grant and its word in order."""
        transfer, work = self.transfers[number], self.works[number]
        begun = bool(transfer.granted)
        if not transfer.ended or begun:
            for rank in sorted(set(range(self.size)) - transfer.granted):
                then = self._with(number, transfer._replace(granted=transfer.granted | {rank}))
                yield Choice(then, (GROUP, rank), self.grant(number), optional=transfer.ended)
        may_speak = not transfer.quiet and (not begun or LEADER in transfer.granted)
        if self.failures and number == self.struck and not transfer.ended and may_speak:
            then = replace(self._with(number, transfer._replace(ended=True)), failures=self.failures - 1)
            yield self._to_leader(then, Cancelled(PEER, work.room, Reason.TRANSFER_FAILED), True)

    def grant(self, number: int) -> Grant:
        """The grant that every prefill rank is sent for a room: its pages are not looked at here."""
        work = self.works[number]
        return Grant(
            PEER, work.room, LEADER, 0, tuple(PageId(page) for page in range(pages_for(len(work.prompt), PAGE_SIZE)))
        )

    def all_granted(self, number: int) -> Self:
        """The grants of a room have reached every rank."""
        return self._with(number, self.transfers[number]._replace(granted=frozenset(range(self.size))))

    def _writes(self, number: int) -> Iterator[Choice]:
        """The writes of a rank end one after the other."""
        transfer = self.transfers[number]
        for rank in range(self.size):
            mine = [write for write in transfer.writes if write.rank == rank]
            if not mine:
                continue
            then = self._with(number, transfer._replace(writes=tuple(w for w in transfer.writes if w != mine[0])))
            yield Choice(then, (GROUP, rank), Moved(mine[0].ticket, Written.OK))
            if self.bad_writes:
                then = replace(then, bad_writes=self.bad_writes - 1)
                yield Choice(then, (GROUP, rank), Moved(mine[0].ticket, Written.FAILED_SETTLED), True)

    def told(self, where: Where, effect: Effect) -> Self:
        """Nothing is posted or committed once prefill has said quiet, and nothing is posted that was not granted."""
        room = effect.room if isinstance(effect, Post) else effect.message.room  # type: ignore[union-attr]
        number = self._number(room)
        transfer = self.transfers[number]
        match effect:
            case Post(ticket=ticket, blocks=blocks):
                write = Write(where[1], ticket, frozenset(source for source, _ in blocks))
                if transfer.quiet:
                    raise StrayAccess(f"{where} posts for {room} after quiet")
                return self._with(number, transfer._replace(writes=(*transfer.writes, write)))
            case TellPeer(message=message):
                return self._with(number, self._said(transfer, message))
            case _:
                raise AssertionError(f"prefill does {effect}")

    def _said(self, transfer: Transfer, message: object) -> Transfer:
        match message:
            case Commit(first=first, last=last):
                return transfer._replace(committed=transfer.committed + last - first)
            case FirstToken():
                return transfer._replace(first=True)
            case Quiet(room=room) if transfer.writes:
                raise StrayAccess(f"quiet of {room} although {transfer.writes} may still land")
            case Quiet():
                return transfer._replace(quiet=True)
            case Cancelled():
                return transfer._replace(ended=True)
            case other:
                raise AssertionError(f"prefill says {other}")

    def check(self, held: Held) -> None:
        """A write reads its room's pages. Ranks before it have stepped whatever it has stepped."""
        for work, transfer in zip(self.works, self.transfers, strict=False):
            for write in transfer.writes:
                for rank in range(write.rank + 1):
                    must_hold(held((GROUP, rank)), work.room, write.pages, "read by a write")

    def missing(self) -> list[str]:
        """Each room has been handed off whole, or has ended; and decode knows that nobody writes any more."""
        lost = []
        for number, (work, transfer) in enumerate(zip(self.works, self.transfers, strict=False)):
            whole = transfer.first and transfer.committed == self.size * len(work.prompt)
            ended = transfer.ended or self.answer(GROUP, work.room).ended is not None
            if not whole and (not ended or (number and self.spares)):
                lost.append(f"{work.room} has not been handed off")
            if not transfer.quiet:
                lost.append(f"decode was not told that {work.room} is quiet")
        return lost

    def may_touch(self, where: Where) -> bool:
        """Grants and the ends of writes come to any rank, and connections come and go."""
        rank = where[1]
        return any(
            rank not in t.granted or any(write.rank == rank for write in t.writes) for t in self.transfers
        ) or self._may_connect(rank)
