"""Ends of epochs: who notices what, who is fenced, what survives, and what is heard of the dead and of those asleep."""

import random
from collections.abc import Callable

import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Launch, Observe, SendNext, TellPeer
from tandem.core.events import Event, LayerRan, Moved, Started, Woke, Written
from tandem.core.ids import NO_SLOT, LayerId, RankId, RequestId, Room, Slot, Tick
from tandem.core.inputs import Frame, Submit
from tandem.core.messages import BallotBack, Baton, Done, Fact, Grant, Progress
from tandem.core.plan import Plan, Row
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import Client
from tandem.sim.crashes import IS_AT, Doom, Point
from tandem.sim.epochs import DEAD_US, MISSED_US
from tandem.sim.faults import Fault, Swarm
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World

PREFILL = Group(RoleName.PREFILL, "p0", (4, 4))
DECODE = Group(RoleName.DECODE, "d0", (3, 3, 2))
OTHERS = (Group(RoleName.PREFILL, "p1", (8,)), Group(RoleName.DECODE, "d1", (8,)))
PAIR = ("p0", "d0")
LIMITS = Limits(page_size=4, num_pages=16, context=64, quiesce_ms=100)
ROW = Row(Room(RequestId(1), 1), (33,), 12, (), True, Sampling())
SOON_US = DEAD_US[1] + MISSED_US[1] + 10_000
"""By then everybody has noticed."""


def work(number: int = 1, max_tokens: int = 20) -> Work:
    return Work(Room(RequestId(number), 1), tuple(range(40, 52)), max_tokens, (), Sampling(), None)


def made(*more: Group, kinds: tuple[Fault, ...] = (), pace: Pace | None = None) -> World:
    """Two groups that have met, and maybe others."""
    cluster = Cluster((PREFILL, DECODE, *more), LIMITS, pace or Pace())
    world = World(1, cluster, build_engine, Client(content_of), Swarm(1, kinds))
    world.run()
    return world


def node(world: World, name: str) -> Node:
    group, _, rank = name.partition(".")
    return world.node(group, RankId(int(rank)))


def until(world: World, condition: Callable[[], object]) -> None:
    while not condition():
        assert world.clock.advance(), "it never came to that"


def within(world: World, us: int) -> None:
    world.run(until_us=world.clock.now_us + us)


def at_rest(world: World) -> None:
    world.run()
    world.client.check()
    world.check_at_rest()


@pytest.fixture
def world() -> World:
    return made()


# one rank dies


@pytest.mark.parametrize("victim", ["d0.0", "d0.1", "d0.2"])
def test_its_fellows_go_on_until_they_notice_and_join_the_next_epoch(world: World, victim: str):
    before = world.ranks("d0")
    world.epochs.crash(node(world, victim), 1)
    assert [fellow.dead for fellow in before] == [fellow is node(world, victim) for fellow in before]
    world.run()
    assert all(fellow.dead for fellow in before)
    assert [fellow.name for fellow in world.ranks("d0")] == ["d0.0#2", "d0.1#2", "d0.2#2"]
    assert world.epochs.formed == 1
    assert world.whole
    world.router.submit(work(), PAIR)
    at_rest(world)
    assert world.client.answer(work().room).ended is Reason.LENGTH


def test_a_survivor_keeps_its_engine_and_the_lost_rank_has_a_new_one(world: World):
    engines = [fellow.engine for fellow in world.ranks("d0")]
    world.epochs.crash(node(world, "d0.1"), 1_000)
    world.run()
    kept = [fellow.engine is engine for fellow, engine in zip(world.ranks("d0"), engines, strict=True)]
    assert kept == [True, False, True]


def test_the_group_is_away_until_the_lost_rank_is_back(world: World):
    world.epochs.crash(node(world, "d0.1"), 500_000)
    within(world, 400_000)
    assert not world.whole
    assert all(fellow.dead for fellow in world.ranks("d0"))
    world.run()
    assert world.whole


def test_a_rank_may_die_while_its_group_is_away(world: World):
    engine = node(world, "d0.2").engine
    world.epochs.crash(node(world, "d0.1"), 100_000)
    within(world, 50_000)
    world.epochs.crash(node(world, "d0.2"), 300_000)
    within(world, 200_000)
    assert not world.whole
    world.run()
    assert world.epochs.formed == 1
    assert node(world, "d0.2").engine is not engine


def test_a_group_may_die_again_as_soon_as_it_is_back(world: World):
    world.epochs.crash(node(world, "d0.1"), 1_000)
    until(world, lambda: world.epochs.formed)
    world.epochs.crash(node(world, "d0.0"), 1_000)
    at_rest(world)
    assert world.epochs.formed == 2
    assert node(world, "d0.0").rank.place.epoch == 3


def test_the_dead_do_nothing_and_hear_nothing(world: World):
    gone = node(world, "p0.1")
    world.router.submit(work(), PAIR)
    until(world, lambda: gone.rank.scheduler.tick >= 0)
    world.epochs.crash(gone, 1_000)
    tick = gone.rank.scheduler.tick
    at_rest(world)
    assert gone.rank.scheduler.tick == tick


@pytest.mark.parametrize("survives", [True, False], ids=["rank 0 survives", "rank 0 dies"])
def test_rank_0_says_farewell_if_it_survives(world: World, survives: bool, monkeypatch: pytest.MonkeyPatch):
    """Else its connections or its silence tell the router."""
    said = []
    tell = world.router.to_client
    monkeypatch.setattr(world.router, "to_client", lambda node, message: (said.append(message), tell(node, message)))
    world.router.submit(work(), PAIR)
    until(world, lambda: len(world.client.answer(work().room).tokens) > 3)
    world.epochs.crash(node(world, "d0.1" if survives else "d0.0"), 1_000)
    at_rest(world)
    assert (Done(work().room, Reason.GROUP_LOST) in said) is survives
    assert world.client.answer(work().room).code == "group_lost"


# one rank freezes


def test_who_wakes_before_it_is_replaced_joins_as_a_survivor(world: World):
    sleeper = node(world, "d0.1")
    engine = sleeper.engine
    world.epochs.freeze(sleeper, 100_000, None)
    within(world, SOON_US)
    assert [fellow.dead for fellow in world.ranks("d0")] == [True, False, True]
    at_rest(world)
    assert sleeper.dead
    assert node(world, "d0.1").engine is engine
    assert world.epochs.formed == 1


def test_who_wakes_after_its_successor_changes_nothing():
    """Its frames are of an old epoch, its facts too, its words are of sessions that have ended."""
    world = made(kinds=(Fault.ZOMBIES,))
    world.router.submit(work(1, max_tokens=40), PAIR)
    sleeper = node(world, "d0.1")
    until(world, lambda: sleeper.compute.waiting or not sleeper.compute.idle)
    world.epochs.freeze(sleeper, 200_000, 1_000)
    until(world, lambda: world.epochs.formed)
    assert not sleeper.dead
    sleeper.take(lambda: sleeper.on(stranger(sleeper)))
    until(world, lambda: len(world.router.membership.usable()) == 2)
    world.router.submit(work(2), PAIR)
    at_rest(world)
    assert sleeper.dead
    assert node(world, "d0.2").rank.stale > 0
    assert world.client.answer(work(2).room).ended is Reason.LENGTH


def stranger(sleeper: Node) -> Baton:
    """A baton of its own epoch, which it passes on when it wakes."""
    tick = Tick(sleeper.rank.scheduler.tick + 1)
    return Baton(sleeper.rank.place.epoch, Frame(tick, NO_SLOT, 0), None)


def test_a_rank_that_is_a_ring_by_itself_is_replaced_in_its_sleep():
    world = made(*OTHERS)
    world.epochs.freeze(node(world, "d1.0"), 100_000, 1_000)
    at_rest(world)
    assert node(world, "d1.0").name == "d1.0#2"


# requests


def test_a_request_goes_on_where_it_was_on_another_pair():
    world = made(*OTHERS)
    world.router.submit(work(), PAIR)
    answer = world.client.answer(work().room)
    until(world, lambda: len(answer.tokens) > 3)
    before = len(answer.tokens)
    world.epochs.crash(node(world, "d0.1"), 1_000_000)
    at_rest(world)
    assert (answer.ended, answer.groups[1]) == (Reason.LENGTH, "d1")
    assert len(answer.attempt.prompt) >= 12 + before, "what was delivered is part of the prompt"
    assert world.router.dispatch.requests.migrated == 1


def test_without_another_pair_the_end_is_honest(world: World):
    world.router.submit(work(), PAIR)
    until(world, lambda: len(world.client.answer(work().room).tokens) > 3)
    world.epochs.crash(node(world, "d0.1"), 1_000_000)
    at_rest(world)
    answer = world.client.answer(work().room)
    assert answer.code == "group_lost"
    assert 3 < len(answer.tokens) < 20


def test_who_was_on_two_groups_when_they_died_is_not_tried_again():
    world = made(*OTHERS, Group(RoleName.DECODE, "d2", (8,)))
    world.router.submit(work(max_tokens=40), PAIR)
    answer = world.client.answer(work().room)
    for _ in range(2):
        served = answer.groups[1]
        until(world, lambda served=served: answer.told.get((answer.attempt.room, served), 0) > 1)
        world.epochs.crash(node(world, f"{served}.0"), 1_000_000)
        until(world, lambda served=served: answer.groups[1] != served or answer.code)
    at_rest(world)
    assert answer.code == "request_quarantined"
    world.router.submit(Work(Room(RequestId(2), 1), answer.work.prompt, 3, (), Sampling(), None), PAIR)
    assert world.client.answer(Room(RequestId(2), 1)).code == "request_quarantined"


# points


@pytest.mark.parametrize(
    ("point", "event", "effects"),
    [
        (Point.QUEUE, Submit(work(), 1), []),
        (Point.QUEUE, Baton(1, Frame(Tick(0), NO_SLOT, 0, (Submit(work(), 1),)), None), []),
        (Point.BOOTSTRAP, Woke(), [TellPeer("p0", RankId(0), Grant("d0", work().room, RankId(0), 0, ()))]),
        (Point.BOOTSTRAP, Woke(), [Observe(work().room, Fact(Progress.WAITING_FOR_INPUT))]),
        (Point.MID_FORWARD, Started(Tick(1)), []),
        (Point.MID_LAYER, LayerRan(Tick(1), LayerId(2)), []),
        (Point.BEFORE_COMMIT, Moved(1, Written.OK), []),
        (Point.AFTER_COMMITS, Woke(), [Observe(work().room, Fact(Progress.SUCCESS))]),
        (Point.AFTER_COMMITS, Woke(), [Observe(work().room, Fact(quiet=True))]),
        (Point.MID_DECODE, Woke(), [Launch(Plan(Tick(1), Slot(0), (ROW,), (), (), 0))]),
        (Point.VOTE, BallotBack(1, Tick(1), 1), []),
        (Point.VOTE, Woke(), [SendNext(Baton(1, Frame(Tick(0), NO_SLOT, 0), 1))]),
    ],
    ids=lambda value: value.value if isinstance(value, Point) else "",
)
def test_a_point_is_known_by_what_a_rank_hears_and_does(point: Point, event: Event, effects: list):
    at = [each for each, is_at in IS_AT.items() if is_at(event, effects)]
    assert at == [point]


def test_every_point_of_a_request_can_be_waited_for():
    assert set(IS_AT) == set(Point) - {Point.RE_FORMING}


def test_doom_strikes_between_two_effects_and_what_is_left_is_done_by_who_wakes():
    """All effects of one event: those before are carried out, the others later, or never by the dead."""
    world, done = made(), []
    sleeper = node(world, "d0.0")
    doom = Doom(Point.QUEUE, 1, lambda struck: struck.stall(5_000), Swarm(1), random.Random(3))
    sleeper.doom = doom
    effects = [Observe(Room(RequestId(9), 1), Fact(quiet=True)) for _ in range(4)]
    sleeper.rank.on = lambda event, now_ms: list(effects)  # type: ignore[method-assign]
    sleeper._do = done.append  # type: ignore[method-assign]
    sleeper.on(Submit(work(9), 1))
    kept = len(done)
    assert kept < 4
    world.run()
    assert len(done) == 4
    assert doom.kept(Woke(), []) is None


def test_doom_waits_for_its_turn_and_ends_with_the_faults():
    swarm = Swarm(1)
    doom = Doom(Point.MID_FORWARD, 3, lambda struck: None, swarm, random.Random(3))
    assert [doom.kept(Started(Tick(1)), []) for _ in range(3)] == [None, None, 0]
    swarm.heal()
    assert doom.kept(Started(Tick(1)), []) is None
