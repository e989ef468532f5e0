"""Mistakes that random runs hardly ever meet: each takes events in an order that is brought about here by hand.

With them and those of `plants.py`, all mistakes are planted.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from inspect import isfunction, signature
from pkgutil import iter_modules

import mistakes
import msgspec
import pytest
from mistakes import epochs, fences, migration, orders, retraction, transfer
from mistakes.ranks import Patch, sessions
from plants import PLANTS
from transfer_run import LIMITS, SECOND_US, SLOW_WRITES, Run, work

from decode.intake import State
from kvtransfer.session import ReceiveState, SendState
from prefill.handoff import State as Handing
from tandem.core.config import RoleName
from tandem.core.effects import Effect
from tandem.core.errors import Divergence
from tandem.core.events import Combined, Event
from tandem.core.ids import RankId, Room
from tandem.core.inputs import Control, Order
from tandem.core.messages import BallotBack, Cancel, Done, Evicted, Return, Token
from tandem.core.requests import Reason
from tandem.sim.case import PAIR
from tandem.sim.client import WrongAnswer
from tandem.sim.clock import Action
from tandem.sim.faults import Fault
from tandem.sim.ledger import WrongContent
from tandem.sim.node import Node
from tandem.sim.oracle import StrayAccess
from tandem.sim.writes import Write, Writes


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
    router = run.world.router
    hang_up, look = router.hang_up, router.look
    router.hang_up = lambda node: run.world.clock.after(SECOND_US, partial(hang_up, node))  # type: ignore
    router.look = lambda: run.world.clock.after(SECOND_US, look)  # type: ignore
    router.submit(work(1), PAIR, late_us={"p0": 100_000})
    run.until(lambda: run.state("d0", 1) is State.TRANSFERRING)
    run.within(5_000)
    run.world.epochs.restart("d0", 1_000)
    run.until(lambda: run.state("p0", 1) is Handing.BOOTSTRAPPING)
    assert met(run)
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def a_sleeper_that_is_still_to_call() -> None:
    """A decode rank freezes when it is about to greet a new prefill group, and wakes when its successor has done so."""
    run = Run()
    run.within(10_000)
    run.world.epochs.freeze(run.world.node("d0", RankId(1)), 300_000, 50_000)
    run.world.epochs.restart("p0", 1_000)
    assert run.ended() == {}
    assert run.world.epochs.formed == 2


def a_write_that_outlives_its_sender() -> None:
    """A prefill group dies amid a transfer and is back when decode ends the room: what it had posted still lands."""
    run = Run(pace=SLOW_WRITES)
    run.within(10_000)
    unheard = held(run.head("d0"), Cancel, Combined)
    run.submit(work(1))
    run.until(lambda: run.head("p0").writes.posted("d0"))
    run.world.epochs.restart("p0", 1)
    run.until(lambda: unheard and run.world.epochs.formed and met(run))
    let_go(run.head("d0"), unheard)
    assert run.ended() == {1: Reason.GROUP_LOST}


def a_peer_lost_between_a_vote_and_its_grant() -> None:
    """Decode has voted for a room that prefill has not heard of yet; they lose each other before the grant goes out."""
    run = Run()
    run.within(10_000)
    decided = held(run.head("d0"), BallotBack)
    run.world.router.submit(work(1), PAIR, late_us={"p0": 100_000})
    run.until(lambda: decided)
    part(run)
    let_go(run.head("d0"), decided)
    run.until(lambda: met(run))
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def a_first_token_that_is_lost() -> None:
    """All KV is with decode, and prefill's rank 0 is done with it, when they lose each other: then it has the token."""
    run = Run()
    run.within(10_000)
    returned = held(run.head("p0"), Return)
    run.submit(work(1))
    run.until(lambda: session(run, "d0", 1) is ReceiveState.COMPLETE and session(run, "p0", 1) is SendState.QUIET)
    part(run)
    let_go(run.head("p0"), returned)
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def a_fence_that_only_one_side_knows_of() -> None:
    """Prefill has cut decode off, they meet again, and only then decode ends the room: a write is still under way.

    Prefill has forgotten the room, but must not answer that it is quiet.
    """
    run = Run(pace=SLOW_WRITES)
    run.within(10_000)
    unheard, late = held(run.head("d0"), Cancel, Combined), given_up(run)
    run.submit(work(1))
    run.until(lambda: run.head("p0").writes.posted("d0"))
    run.world.router.to_group("p0", Control(Order.RELEASE, "d0"))
    run.until(lambda: late and unheard and run.state("p0", 1) is None and met(run))
    let_go(run.head("d0"), unheard)
    run.until(lambda: run.state("d0", 1) is not State.TRANSFERRING)
    run.within(10_000)
    land(late)
    assert run.ended() == {1: Reason.TRANSFER_FAILED}


def a_write_to_who_is_in_the_next_epoch() -> None:
    """A decode rank dies when a write to the other one was given up, which soon has another request in the pages."""
    run = Run()
    run.within(10_000)
    late = given_up(run)
    run.submit(work(1))
    run.until(lambda: late)
    all_is_well(run)
    run.world.router.to_group("p0", Control(Order.RELEASE, "d0"))
    run.until(lambda: run.state("p0", 1) is None)
    run.world.epochs.crash(run.world.node("d0", RankId(1)), 1_000)
    run.until(lambda: run.world.epochs.formed and met(run) and len(run.world.router.membership.usable()) == 2)
    run.submit(work(2))
    run.until(lambda: session(run, "d0", 2) is ReceiveState.COMPLETE)
    land(late)
    assert run.ended()[2] is Reason.LENGTH


def a_flush_while_pages_are_on_the_host() -> None:
    """Who comes back from host memory has KV of before the flush; the same prompt comes again when it has ended."""
    run = Run(limits=msgspec.structs.replace(LIMITS, num_pages=20, host_pages=100))
    run.submit(work(1, 20, 40), work(2, 20, 40))
    run.until(lambda: run.state("d0", 2) is State.RETRACTED)
    run.world.router.to_group("d0", Control(Order.FLUSH))
    run.ended()
    run.submit(msgspec.structs.replace(work(2, 20, 4), room=work(3).room))
    assert run.ended() == dict.fromkeys((1, 2, 3), Reason.LENGTH)


def a_drain_while_the_last_attempt_leaves() -> None:
    """A hand-over fails, and the same groups try again: decode has the pages of the first attempt still."""
    run = Run(pace=SLOW_WRITES)
    run.within(10_000)
    late = given_up(run)
    run.submit(work(1), retries=1)
    run.until(lambda: run.head("p0").writes.posted("d0"))
    run.world.router.to_group("d0", Control(Order.DRAIN))
    run.until(lambda: run.client.answer(work(1).room).attempt.room.attempt == 2)
    all_is_well(run)
    run.until(lambda: run.client.answer(work(1).room).code)
    run.world.router.to_group("d0", Control(Order.RESUME))
    land(late)
    assert run.ended() == {1: Reason.LENGTH}


def a_drain_of_a_group_that_never_had_the_first_attempt() -> None:
    """A decode group dies amid a transfer. Another one, which drains, is all there is for the next attempt."""
    run = Run(decodes=2)
    run.within(10_000)
    run.submit(work(1))
    run.until(lambda: run.state("d0", 1) is State.TRANSFERRING)
    run.world.router.to_group("d1", Control(Order.DRAIN))
    run.within(1_000)
    run.world.epochs.restart("d0", SECOND_US)
    run.until(lambda: run.client.answer(work(1).room).code)
    run.world.router.to_group("d1", Control(Order.RESUME))
    assert run.ended() == {1: Reason.LENGTH}


def a_first_token_that_outlives_its_attempt() -> None:
    """Decode told tokens and evicts the request. Prefill's word of token 0 comes while it serves the next attempt."""
    run = Run(limits=msgspec.structs.replace(LIMITS, num_pages=20, host_pages=0))
    room = work(2).room
    late = slow_words(run, room)
    run.submit(work(1, 20, 40), work(2, 20, 40))
    run.until(lambda: run.client.answer(room).attempt.room.attempt == 2)
    land(late)
    assert run.ended() == dict.fromkeys((1, 2), Reason.LENGTH)


ORDERS = [
    (
        a_fence_between_a_vote_and_its_grant,
        fences.a_fence_counts_for_rooms_that_are_granted_later,
        StrayAccess,
        "given them away",
    ),
    (a_grant_that_is_older_than_its_giver, fences.a_grant_of_the_old_instance_is_used, StrayAccess, "given them away"),
    (a_sleeper_that_is_still_to_call, epochs.a_sleepers_hello_replaces_its_successor, Divergence, "strangers"),
    (a_write_that_outlives_its_sender, fences.a_successor_vouches_for_the_dead, StrayAccess, "given them away"),
    (
        a_peer_lost_between_a_vote_and_its_grant,
        transfer.a_peer_lost_before_the_grant_is_not_missed,
        AssertionError,
        "DEADLINE",
    ),
    (a_first_token_that_is_lost, fences.a_lost_first_token_is_not_missed, AssertionError, "DEADLINE"),
    (
        a_fence_that_only_one_side_knows_of,
        fences.quiet_is_answered_after_a_fence_of_our_own,
        StrayAccess,
        "given them away",
    ),
    (a_write_to_who_is_in_the_next_epoch, epochs.a_survivor_is_not_fenced, WrongContent, "first row"),
    (a_flush_while_pages_are_on_the_host, retraction.publish_what_was_restored, WrongContent, "before a flush"),
    (a_drain_while_the_last_attempt_leaves, orders.a_drain_refuses_what_is_still_leaving, AssertionError, "DRAINING"),
    (
        a_drain_of_a_group_that_never_had_the_first_attempt,
        orders.a_drain_refuses_what_it_never_had,
        AssertionError,
        "DRAINING",
    ),
    (
        a_first_token_that_outlives_its_attempt,
        migration.an_old_attempts_tokens_are_taken,
        WrongAnswer,
        "ended Reason.LENGTH",
    ),
]


@pytest.mark.parametrize("order", [order for order, *_ in ORDERS])
def test_it_ends_well(order: Callable[[], None]):
    order()


@pytest.mark.parametrize(("order", "mistake", "found_as", "saying"), ORDERS)
def test_the_mistake_is_found(
    order: Callable[[], None],
    mistake: Callable[[Patch], None],
    found_as: type[Exception],
    saying: str,
    monkeypatch: pytest.MonkeyPatch,
):
    mistake(monkeypatch)
    with pytest.raises(found_as, match=saying):
        order()


def test_every_mistake_is_planted():
    planted = {plant.mistake for plant in PLANTS} | {mistake for _, mistake, *_ in ORDERS}
    assert [mistake.__name__ for mistake in every_mistake() if mistake not in planted] == []


def every_mistake() -> Iterator[Callable[[Patch], None]]:
    """Those of all modules; what they share takes more than the patch."""
    for module in iter_modules(mistakes.__path__):
        for each in vars(import_module(f"mistakes.{module.name}")).values():
            if isfunction(each) and [*signature(each).parameters] == ["patch"]:
                yield each


def met(run: Run) -> bool:
    """Whether all ranks know each other."""
    return all(
        node.peers.known(other, rank) is not None
        for group, other in (("p0", "d0"), ("d0", "p0"))
        for node in run.world.ranks(group)
        for rank in (RankId(0), RankId(1))
    )


def held(node: Node, *kinds: type[Event]) -> list[Event]:
    """Events of these kinds, which a rank is not told of for now."""
    kept: list[Event] = []
    take = node.rank.on

    def on(event: Event, now_ms: int) -> list[Effect]:
        if not isinstance(event, kinds):
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


def session(run: Run, group: str, number: int) -> object:
    """Where rank 0 of a group has the transfer of a request."""
    kept = sessions(run.head(group).rank).get(work(number).room)
    return kept and kept.state


def part(run: Run) -> None:
    """The two ranks 0 lose each other, at once, and meet again soon."""
    run.world.part(run.head("p0"), run.head("d0"), (0, 0), 20_000)
    run.within(1)


def given_up(run: Run) -> list[Action]:
    """Every write of prefill is given up from now on, and lands when these are called."""
    late: list[Action] = []

    def keep(node: Node, write: Write) -> bool:
        late.append(partial(Writes._land, node.writes, write))
        return False

    run.world.swarm.strikes = lambda kind, share: kind is Fault.UNSETTLED_WRITES  # type: ignore[method-assign]
    for node in run.world.ranks("p0"):
        node.writes._land = partial(keep, node)  # type: ignore[method-assign]
    return late


def slow_words(run: Run, room: Room) -> list[Action]:
    """What prefill tells the router of a room arrives when these are called."""
    late: list[Action] = []
    to_client = run.world.router.to_client

    def keep(node: Node, message: Token | Done | Evicted) -> None:
        if node.role is RoleName.PREFILL and message.room == room:
            late.append(partial(to_client, node, message))
        else:
            to_client(node, message)

    run.world.router.to_client = keep  # type: ignore[method-assign]
    return late


def all_is_well(run: Run) -> None:
    """Writes land from now on."""
    del run.world.swarm.strikes
    for node in run.world.ranks("p0"):
        del node.writes._land


def land(late: list[Action]) -> None:
    """What was held up arrives, where it can."""
    for action in late:
        action()
