"""The simulator's own parts, one at a time: what no planted mistake can reach yet, and the router's rules."""

import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import BackUp, Restore
from tandem.core.events import BackedUp
from tandem.core.ids import NO_SLOT, LayerId, PageId, RankId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Control, Frame, Order, Submit
from tandem.core.messages import Done, Evicted, Token
from tandem.core.plan import Plan, Row
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import Client, WrongAnswer
from tandem.sim.compute import IllegalCopy
from tandem.sim.faults import Fault, Swarm
from tandem.sim.ledger import WrongContent
from tandem.sim.node import Node
from tandem.sim.oracle import StrayAccess, check_forward_writes
from tandem.sim.orders import Disobeyed
from tandem.sim.router import VOCAB
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, World

GROUPS = (Group(RoleName.PREFILL, "p0", (8,)), Group(RoleName.DECODE, "d0", (4, 4)))
PAIR = ("p0", "d0")
MINE, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)


def work(room: Room = MINE, salt: str = "", max_tokens: int = 6) -> Work:
    return Work(room, (72, 105, 33), max_tokens, (), Sampling(), None, salt=salt)


@pytest.fixture
def node() -> Node:
    limits = Limits(page_size=4, num_pages=8, context=64, host_pages=8)
    world = World(1, Cluster(GROUPS, limits), build_engine, Client(content_of))
    for room, salt in ((MINE, "a"), (OTHER, "b")):
        world.client.asks(work(room, salt), 0, 1_000_000)
    return world.node("d0", RankId(0))


def hold(node: Node, room: Room, count: int) -> tuple[PageId, ...]:
    return node.rank.scheduler.role.pool.allocate(room, count)


def hold_on_host(node: Node, room: Room) -> tuple[PageId, ...]:
    return vars(node.rank.scheduler.role)["_held"].host.allocate(room, 1)


# copies to host memory


def test_a_copy_to_host_memory_and_back_keeps_every_layer(node: Node, monkeypatch: pytest.MonkeyPatch):
    heard: list[object] = []
    monkeypatch.setattr(node, "on", heard.append)
    one, other = hold(node, MINE, 2)
    copies = hold_on_host(node, MINE)
    for layer in range(4):
        node.memory.block(LayerId(layer), one)[:] = bytes([layer + 1]) * 64
    node.compute.put(BackUp(MINE, (one,), copies))
    node.compute.put(Restore(MINE, copies, (other,)))
    node.world.run(until_us=100_000)
    assert BackedUp(MINE) in heard
    assert [node.memory.block(LayerId(layer), other)[0] for layer in range(4)] == [1, 2, 3, 4]
    assert node.compute.idle


def test_host_pages_of_another_room_are_not_restored(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node, "on", lambda event: None)
    mine, other, copies = hold(node, MINE, 1), hold(node, OTHER, 1), hold_on_host(node, OTHER)
    node.compute.put(BackUp(OTHER, other, copies))
    node.compute.put(Restore(MINE, copies, mine))
    with pytest.raises(IllegalCopy, match="holds pages of 0000000000000002"):
        node.world.run(until_us=100_000)


def test_pages_that_were_given_away_are_not_copied(node: Node):
    hold(node, OTHER, 1)
    node.compute.put(BackUp(MINE, (PageId(0),), (5,)))
    with pytest.raises(StrayAccess, match="used by a backup"):
        node.world.run(until_us=100_000)


def test_host_pages_of_another_room_are_not_written(node: Node):
    node.compute.put(BackUp(MINE, hold(node, MINE, 1), hold_on_host(node, OTHER)))
    with pytest.raises(StrayAccess, match="written on the host by a backup"):
        node.world.run(until_us=100_000)


# pages that are shared


def row(pages: tuple[PageId, ...], start: int) -> Plan:
    one = Row(MINE, (33,), start, pages, True, Sampling())
    return Plan(0, 0, (one,), (), (), 0)  # type: ignore[arg-type]


def test_a_shared_page_is_not_written(node: Node, monkeypatch: pytest.MonkeyPatch):
    pages = hold(node, MINE, 2)
    pool = node.rank.scheduler.role.pool
    monkeypatch.setattr(pool, "writable", lambda room: pages[1:])  # the first one is in the prefix tree
    check_forward_writes(row(pages, 4), node.rank)
    with pytest.raises(StrayAccess, match="written by tick"):
        check_forward_writes(row(pages, 3), node.rank)


def test_a_page_of_another_tenant_is_not_read(node: Node):
    pages = hold(node, MINE, 1)
    node.ledger.wrote(OTHER, pages)
    with pytest.raises(WrongContent, match="salt 'b'"):
        node.ledger.begin(row(pages, 2))


def test_a_page_that_nobody_wrote_is_not_read(node: Node):
    with pytest.raises(WrongContent, match="None wrote it"):
        node.ledger.begin(row(hold(node, MINE, 1), 2))


def flush_before_it_comes(node: Node) -> None:
    for tick, arrival in enumerate((Control(Order.FLUSH), Submit(work(), 1_000))):
        node.orders.check(node.rank, [Frame(Tick(tick), NO_SLOT, 0, (arrival,))])


def test_what_was_written_before_a_flush_is_not_read_by_who_came_later(node: Node):
    pages = hold(node, MINE, 1)
    node.ledger.wrote(MINE, pages)
    flush_before_it_comes(node)
    with pytest.raises(WrongContent, match="before a flush"):
        node.ledger.begin(row(pages, 2))


def test_what_comes_back_from_host_memory_is_as_old_as_it_was(node: Node):
    pages, others, copies = hold(node, MINE, 1), hold(node, MINE, 1), hold_on_host(node, MINE)
    node.ledger.wrote(MINE, pages)
    node.ledger.copied(BackUp(MINE, pages, copies))
    flush_before_it_comes(node)
    node.ledger.copied(Restore(MINE, copies, others))
    with pytest.raises(WrongContent, match="before a flush"):
        node.ledger.begin(row(others, 2))


# what operators said


def test_a_paused_group_gives_no_pages(node: Node):
    node.orders.check(node.rank, [Frame(Tick(0), NO_SLOT, 0, (Control(Order.PAUSE),))])
    node.orders.check(node.rank, [Frame(Tick(1), NO_SLOT, 0)])
    hold(node, MINE, 1)
    with pytest.raises(Disobeyed, match="pages 0, then 1"):
        node.orders.check(node.rank, [Frame(Tick(2), NO_SLOT, 0)])


def test_a_paused_group_launches_nothing_until_it_is_resumed(node: Node):
    node.orders.check(node.rank, [Frame(Tick(0), NO_SLOT, 0, (Control(Order.PAUSE), Control(Order.RESUME)))])
    node.rank.scheduler.flights.launch(Tick(1), Slot(0), row((), 0).rows)
    node.orders.check(node.rank, [Frame(Tick(1), Slot(0), 0)])
    node.rank.scheduler.flights.launch(Tick(2), Slot(1), row((), 0).rows)
    with pytest.raises(Disobeyed, match=r"launched \[2\]"):
        node.orders.check(node.rank, [Frame(Tick(2), Slot(1), 0, (Control(Order.PAUSE),))])


# what clients and groups say


@pytest.fixture
def world() -> World:
    """A request is on its way to both groups."""
    world = World(1, Cluster(GROUPS, Limits(page_size=4, num_pages=8, context=64)), build_engine, Client(content_of))
    world.router.submit(work(), PAIR)
    return world


def says(world: World, group: str, message: Token | Done | Evicted) -> None:
    """It arrives at the router."""
    world.router._hear(world.node(group, RankId(0)), message)


def tokens_of(world: World) -> list[int]:
    content = world.client.answer(MINE).content
    assert content is not None
    return content.tokens


def serve(world: World, room: Room, group: str, first: int, last: int) -> None:
    """Tokens [first, last) of the whole answer, in an attempt that began at `first`."""
    for index, token in enumerate(tokens_of(world)[first:last]):
        says(world, group, Token(room, index, token))


def test_an_evicted_request_goes_on_where_it_was(world: World):
    serve(world, MINE, "d0", 0, 2)
    says(world, "d0", Evicted(MINE))
    answer = world.client.answer(MINE)
    assert (answer.attempt.room, answer.attempt.max_tokens) == (Room(MINE.rid, 2), 4)
    assert answer.attempt.prompt == (72, 105, 33, *tokens_of(world)[:2])
    serve(world, answer.attempt.room, "d0", 2, 6)
    says(world, "d0", Done(answer.attempt.room, Reason.LENGTH))
    world.client.check()
    assert answer.ended is Reason.LENGTH


def test_what_an_old_attempt_says_is_looked_at_but_not_heard(world: World):
    says(world, "d0", Evicted(MINE))
    says(world, "p0", Done(MINE, Reason.TOO_LARGE))
    assert world.client.waiting()
    with pytest.raises(WrongAnswer, match="the reference has"):
        says(world, "p0", Token(Room(MINE.rid, 2), 0, tokens_of(world)[0] + 1))


def test_the_budget_of_retries_is_the_runs():
    world = World(1, Cluster(GROUPS, Limits(page_size=4, num_pages=8, context=64)), build_engine, Client(content_of))
    world.router.submit(work(), PAIR, retries=1)
    says(world, "p0", Done(MINE, Reason.TRANSFER_FAILED))
    assert world.client.waiting()
    says(world, "p0", Done(Room(MINE.rid, 2), Reason.TRANSFER_FAILED))
    assert world.client.answer(MINE).ended is Reason.TRANSFER_FAILED


def test_a_wrong_token_is_noticed(world: World):
    with pytest.raises(WrongAnswer, match="the reference has"):
        says(world, "d0", Token(MINE, 0, tokens_of(world)[0] + 1))


def test_a_gap_is_noticed(world: World):
    with pytest.raises(WrongAnswer, match="only 0 tokens came before"):
        says(world, "d0", Token(MINE, 1, tokens_of(world)[1]))


def test_a_token_may_come_from_both_groups_but_not_from_one_again(world: World):
    serve(world, MINE, "d0", 0, 1)
    serve(world, MINE, "p0", 0, 1)
    with pytest.raises(WrongAnswer, match="told it before"):
        serve(world, MINE, "d0", 0, 1)


def test_a_word_after_the_last_one_is_noticed(world: World):
    says(world, "d0", Done(MINE, Reason.DEADLINE))
    with pytest.raises(WrongAnswer, match="after its last word"):
        serve(world, MINE, "d0", 0, 1)


def test_who_is_not_answered_is_noticed(world: World):
    with pytest.raises(WrongAnswer, match="never answered"):
        world.client.check()


def test_an_answer_that_is_not_the_reference_is_noticed(world: World):
    serve(world, MINE, "d0", 0, 6)
    world.client.check()
    tokens_of(world)[2] += 1
    with pytest.raises(WrongAnswer, match=r"ended Reason\.LENGTH with"):
        world.client.check()


def test_an_error_that_no_fault_explains_is_noticed(world: World):
    says(world, "d0", Token(MINE, 0, tokens_of(world)[0]))
    world.client.answer(MINE).content = None  # the router notices it by itself
    says(world, "d0", Token(MINE, 1, VOCAB))
    with pytest.raises(WrongAnswer, match="protocol_violation"):
        world.client.check()


# faults


def test_a_fault_acts_until_the_heal_and_is_counted():
    swarm = Swarm(1, (Fault.LOST_FACTS,))
    assert sum(swarm.strikes(Fault.LOST_FACTS, 0.5) for _ in range(100)) == swarm.counts[Fault.LOST_FACTS] > 20
    assert not any(swarm.strikes(Fault.LOST_ACKS, 1.0) for _ in range(10))
    swarm.heal()
    assert not any(swarm.strikes(Fault.LOST_FACTS, 1.0) for _ in range(10))
