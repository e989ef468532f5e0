"""Mistakes that random runs hardly ever meet: each takes events in an order that is brought about here by hand."""

from collections.abc import Callable

import pytest
from mistakes import fences
from transfer_run import SECOND_US, SLOW_WRITES, Run, work

from decode.intake import State
from prefill.handoff import State as Handing
from tandem.core.effects import Effect
from tandem.core.events import Event
from tandem.core.ids import RankId
from tandem.core.inputs import Control, Order
from tandem.core.messages import BallotBack
from tandem.core.requests import Reason
from tandem.sim.case import PAIR
from tandem.sim.node import Node
from tandem.sim.oracle import StrayAccess


def a_fence_between_a_vote_and_its_grant() -> None:
    """Decode has voted for a room that prefill has not heard of yet, cuts prefill off, meets it again, and grants."""
    run = Run(pace=SLOW_WRITES)
    run.within(10_000)
    decided = held(run.head("d0"), BallotBack)
    run.world.router.submit(work(1), PAIR, late_us={"p0": 100_000})
    run.until(lambda: decided)
    run.world.router.to_group("d0", Control(Order.RELEASE, "p0"))
    run.until(lambda: all(node.peers.fences["p0"] for node in run.world.ranks("d0")))
    run.until(lambda: met(run))
    run.within(5_000)
    let_go(run.head("d0"), decided)
    run.until(lambda: run.head("p0").writes.posted("d0"))
    run.world.router.cancel(work(1), ("d0",))
    run.until(lambda: run.state("d0", 1) is not State.TRANSFERRING)
    assert run.ended() == {1: Reason.CLIENT_GONE}


def a_grant_that_is_older_than_its_giver() -> None:
    """Decode grants pages before prefill has heard of the room, and starts over; prefill hears of it then."""
    run = Run()
    run.within(10_000)
    notice = run.world.router.lost
    run.world.router.lost = lambda *gone: run.world.clock.after(SECOND_US, lambda: notice(*gone))  # type: ignore
    run.world.router.submit(work(1), PAIR, late_us={"p0": 100_000})
    run.until(lambda: run.state("d0", 1) is State.TRANSFERRING)
    run.within(5_000)
    run.world.restarts.restart("d0", 1_000)
    run.until(lambda: run.state("p0", 1) is Handing.BOOTSTRAPPING)
    assert met(run)
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


ORDERS = [
    (a_fence_between_a_vote_and_its_grant, fences.a_fence_counts_for_rooms_that_are_granted_later),
    (a_grant_that_is_older_than_its_giver, fences.a_grant_of_the_old_instance_is_used),
]


@pytest.mark.parametrize("order", [order for order, _ in ORDERS])
def test_it_ends_well(order: Callable[[], None]):
    order()


@pytest.mark.parametrize(("order", "mistake"), ORDERS)
def test_the_mistake_is_found(
    order: Callable[[], None], mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mistake(monkeypatch)
    with pytest.raises(StrayAccess):
        order()


def met(run: Run) -> bool:
    """Whether all ranks know each other."""
    return all(
        node.peers.known(other, rank) is not None
        for group, other in (("p0", "d0"), ("d0", "p0"))
        for node in run.world.ranks(group)
        for rank in (RankId(0), RankId(1))
    )


def held(node: Node, kind: type[Event]) -> list[Event]:
    """Events of this kind, which a rank is not told of for now."""
    kept: list[Event] = []
    take = node.rank.on

    def on(event: Event, now_ms: int) -> list[Effect]:
        if not isinstance(event, kind):
            return take(event, now_ms)
        kept.append(event)
        return []

    node.rank.on = on  # type: ignore[method-assign]
    return kept


def let_go(node: Node, kept: list[Event]) -> None:
    """They come now, in their order, and nothing is held any more."""
    del node.rank.on
    for event in kept:
        node.on(event)
