"""What a decode group sees of a prefill group, in every order that the protocol allows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from checking.environment import Answer, Choice, Held, Where, must_hold
from checking.stand_in import StandIn

from tandem.core.effects import Effect, TellPeer
from tandem.core.ids import LayerId, PageId, Room
from tandem.core.inputs import FirstToken
from tandem.core.messages import Cancelled, Commit, Grant, Quiet
from tandem.core.requests import Reason

GROUP, PEER = "d0", "p0"
"""The group that is real, and the one that is not."""
TOKEN = 65


class Transfer(NamedTuple):
    """One room, as a prefill group of one rank has it."""

    submitted: bool = False  # to decode
    grants: frozenset[int] = frozenset()  # decode ranks that have granted
    pages: frozenset[PageId] = frozenset()
    landed: frozenset[int] = frozenset()  # decode ranks that have had the commit of their layer
    deaf: frozenset[int] = frozenset()  # decode ranks that have forgotten the room
    sampled: bool = False  # token 0 has been sent
    ended: bool = False  # early: by decode's word or our own
    owed: int = 1  # quiets: one at the end, one more for each word of a room that has gone
    quiet: bool = False


@dataclass(frozen=True)
class PrefillStandIn(StandIn):
    """One prefill rank that owns all layers, and a router."""

    group, peer = GROUP, PEER

    transfers: tuple[Transfer, ...] = (Transfer(), Transfer())
    late: int = 0  # tokens that the router has been told when all orders of a warm setting begin

    def _transfer(self, number: int) -> Iterator[Choice]:
        transfer, work = self.transfers[number], self.works[number]
        room = work.room
        granted = len(transfer.grants) == self.size
        if granted:
            for rank in sorted(transfer.grants - transfer.landed - transfer.deaf):
                then = self._with(number, transfer._replace(landed=transfer.landed | {rank}))
                commit = Commit(room, LayerId(rank), 0, len(work.prompt))
                yield Choice(then, (GROUP, rank), commit, optional=transfer.ended)
        if granted and not transfer.sampled and not transfer.ended:
            then = self._with(number, transfer._replace(sampled=True))
            yield self._to_leader(then, FirstToken(room, TOKEN))
        if transfer.owed and (transfer.ended or transfer.sampled):
            owed = transfer.owed - 1
            yield self._to_leader(self._with(number, transfer._replace(owed=owed, quiet=True)), Quiet(room))
        if self.failures and number == self.struck and not transfer.ended and not transfer.quiet:
            then = replace(self._with(number, transfer._replace(ended=True)), failures=self.failures - 1)
            yield self._to_leader(then, Cancelled(PEER, room, Reason.TRANSFER_FAILED), True)

    def told(self, where: Where, effect: Effect) -> Self:
        """Grants let the transfer begin; a cancelled room is answered with quiet, even after it has gone."""
        assert isinstance(effect, TellPeer)
        number = self._number(effect.message.room)
        transfer = self.transfers[number]
        match effect.message:
            case Grant(rank=rank, pages=pages):
                held = transfer.pages | frozenset(pages)
                return self._with(number, transfer._replace(grants=transfer.grants | {rank}, pages=held))
            case Cancelled():
                owed = 1 if transfer.quiet else transfer.owed
                return self._with(number, transfer._replace(ended=True, owed=owed))
            case other:
                raise AssertionError(f"decode says {other}")

    def forgot(self, where: Where, room: Room) -> Self:
        """A commit would say nothing there any more."""
        number = self._number(room)
        transfer = self.transfers[number]
        return self._with(number, transfer._replace(deaf=transfer.deaf | {where[1]}))

    def check(self, held: Held) -> None:
        """Prefill may write a layer until it is committed, or all is quiet."""
        for work, transfer in zip(self.works, self.transfers, strict=False):
            if len(transfer.grants) == self.size and not transfer.quiet:
                for rank in sorted(transfer.grants - transfer.landed):
                    must_hold(held((GROUP, rank)), work.room, transfer.pages, "granted to a writer")

    def settled(self) -> bool:
        """Prefill may still owe its last word, quiet."""
        told = sum(answer.tokens for _, answer in self.answers)
        return told >= self.late and all(
            transfer.sampled and len(transfer.landed) == self.size for transfer in self.transfers
        )

    def missing(self) -> list[str]:
        """Every request that prefill has not ended first has an answer."""
        lost = []
        for number, (work, transfer) in enumerate(zip(self.works, self.transfers, strict=False)):
            answer = self.answer(GROUP, work.room)
            if answer.ended is None and not answer.evicted and not transfer.ended:
                lost.append(f"{work.room} has no answer")
            if number != self.struck and self.spares and answer != Answer(work.max_tokens, Reason.LENGTH):
                lost.append(f"{work.room} has ended with {answer}, though nothing has happened to it")
        return lost

    def may_touch(self, where: Where) -> bool:
        """Commits come to ranks that have granted, and connections come and go."""
        rank = where[1]
        waiting = any(rank in transfer.grants - transfer.landed - transfer.deaf for transfer in self.transfers)
        return waiting or self._may_connect(rank)
