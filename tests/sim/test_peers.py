"""Handshakes, lost words, fences and restarts between the ranks of two groups, one at a time."""

from collections.abc import Callable

import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Post, TellPeer
from tandem.core.events import Event, Fenced, Moved, PeerLost, PeerOpened, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.messages import Quiet
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import Client
from tandem.sim.faults import Fault
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World
from tandem.sim.writes import Writes

GROUPS = (Group(RoleName.PREFILL, "p0", (4, 4)), Group(RoleName.DECODE, "d0", (6, 2)))
PAIR = ("p0", "d0")
ROOM = Room(RequestId(1), 1)
WORK = Work(ROOM, tuple(range(40, 52)), 6, (), Sampling(), None)
LIMITS = Limits(page_size=4, num_pages=8, context=64, quiesce_ms=100)
LAYER = LayerId(0)
OURS = 1_000
"""The ticket of a write of which the couriers know nothing."""
SLOW = Pace(write_us=(9_000, 9_000))


class Pair:
    """Two groups that have met, what their ranks hear, and a room that holds the same pages everywhere."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.world = World(1, Cluster(GROUPS, LIMITS, pace or Pace()), build_engine, Client(content_of))
        self.heard: list[tuple[str, Event]] = []
        for node in self.world.nodes:
            node.on = self._listening(node)  # type: ignore[method-assign]
        self.world.run()
        self.prefill, self.decode = self.world.node("p0", RankId(0)), self.world.node("d0", RankId(0))

    def _listening(self, node: Node) -> Callable[[Event], None]:
        on = node.on

        def listen(event: Event) -> None:
            if not node.dead:
                self.heard.append((node.name, event))
            if not isinstance(event, Moved) or event.ticket != OURS:
                on(event)

        return listen

    def hears(self, node: Node, *kinds: type[Event]) -> list[Event]:
        return [event for name, event in self.heard if name == node.name and isinstance(event, kinds)]

    def met(self) -> bool:
        """Whether every rank knows every rank of the other group."""
        sides = self.world.ranks("p0"), self.world.ranks("d0")
        both = ((one, other) for ones, others in (sides, sides[::-1]) for one in ones for other in others)
        return all(one.peers.known(*other.key) for one, other in both)

    def post(self, pages: int = 1) -> None:
        """A write from rank 0 to rank 0, of ones, for a room that holds its pages at both ends."""
        self.world.client.asks(WORK, 0, 1_000_000)  # the router has not sent it to anybody
        for node in self.world.nodes:
            held = node.rank.scheduler.role.pool.allocate(ROOM, pages)
        for page in held:
            self.prefill.memory.block(LAYER, page)[:] = bytes([1]) * 64
        blocks = tuple((page, page) for page in held)
        self.prefill.writes.post(Post(OURS, ROOM, "d0", RankId(0), LAYER, blocks))

    def landed(self, page: int = 0) -> int:
        """The first byte of a page over there."""
        return self.decode.memory.block(LAYER, PageId(page))[0]


# handshakes and words


def test_all_ranks_meet_and_prefill_opens_first():
    pair = Pair()
    assert pair.met()
    order = [name for name, event in pair.heard if isinstance(event, PeerOpened)]
    assert order.index("p0.0") < order.index("d0.0")


def test_ranks_that_lost_each_other_meet_again_and_what_was_said_between_is_lost():
    pair = Pair()
    pair.world.part(pair.prefill, pair.decode, (0, 0), 20_000)
    pair.prefill.peers.say(TellPeer("d0", RankId(0), Quiet(ROOM)))
    pair.world.run(until_us=pair.world.clock.now_us + 10_000)
    pair.prefill.peers.say(TellPeer("d0", RankId(0), Quiet(ROOM)))
    pair.world.run()
    assert pair.met()
    assert pair.world.lost_words == 2
    assert pair.hears(pair.decode, Quiet) == []
    pair.prefill.peers.say(TellPeer("d0", RankId(0), Quiet(ROOM)))
    pair.world.run()
    assert pair.hears(pair.decode, Quiet) == [Quiet(ROOM)]


# fences


@pytest.mark.parametrize(("fencer", "fenced"), [PAIR, PAIR[::-1]])
def test_a_fence_loses_the_whole_group_and_meets_it_as_another_instance(fencer: str, fenced: str):
    pair = Pair()
    node, other = pair.world.node(fencer, RankId(1)), pair.world.node(fenced, RankId(0))
    pair.heard.clear()
    node.peers.fence(fenced)
    assert node.peers.known(*other.key) is None
    pair.world.run()
    *lost, done = pair.hears(node, PeerLost, Fenced)
    assert {PeerLost(fenced, RankId(0)), PeerLost(fenced, RankId(1))} == set(lost)
    assert done == Fenced(fenced)
    assert pair.hears(other, PeerLost) == [PeerLost(fencer, RankId(1))]
    (opened,) = pair.hears(other, PeerOpened)
    assert isinstance(opened, PeerOpened)
    assert opened.hello.instance == (1, 1)
    assert pair.met()


def test_both_sides_may_fence_each_other_at_once_and_more_than_once():
    pair = Pair()
    for node in (pair.prefill, pair.decode, pair.decode):
        node.peers.fence("d0" if node is pair.prefill else "p0")
    pair.world.run()
    assert pair.met()
    assert (pair.prefill.peers.fences["d0"], pair.decode.peers.fences["p0"]) == (1, 2)
    assert pair.world.fences == 3


@pytest.mark.parametrize("fencer", PAIR)
def test_nobody_meets_while_a_fence_goes_on(fencer: str):
    pair = Pair(Pace(fence_us=(50_000, 50_000)))
    node = pair.world.node(fencer, RankId(0))
    pair.world.part(pair.prefill, pair.decode, (0, 0), 1_000)
    node.peers.fence("d0" if fencer == "p0" else "p0")
    pair.heard.clear()
    pair.world.run(until_us=pair.world.clock.now_us + 49_000)
    assert pair.hears(node, PeerOpened) == []
    pair.world.run()
    assert pair.met()


def test_a_fence_waits_for_the_end_of_our_own_writes():
    pair = Pair(SLOW)
    pair.post()
    pair.prefill.peers.fence("d0")
    pair.world.run()
    assert pair.hears(pair.prefill, Moved, Fenced) == [Moved(OURS, Written.OK), Fenced("d0")]


@pytest.mark.parametrize("fences", [False, True])
def test_nothing_lands_after_a_fence(fences: bool):
    pair = Pair(SLOW)
    pair.post()
    if fences:
        pair.decode.peers.fence("p0")
    pair.world.run()
    assert pair.landed() == (not fences)
    assert pair.world.fenced_writes == fences
    (moved,) = pair.hears(pair.prefill, Moved)
    assert isinstance(moved, Moved)
    assert (moved.result is Written.OK) is not fences


def test_what_lands_after_a_fence_of_our_own_was_read_before_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Writes, "_strikes", lambda writes, kind: kind is Fault.UNSETTLED_WRITES)
    monkeypatch.setattr("tandem.sim.writes.MOST_LATE_US", 0)
    pair = Pair(Pace(write_us=(9_000, 9_000), fence_us=(0, 0)))
    monkeypatch.setattr(pair.prefill.rng, "randrange", lambda most: most - 1)
    pair.post(pages=2)
    (write,) = vars(pair.prefill.writes)["_afloat"].values()
    vars(pair.prefill.writes)["_posted"].clear()  # its end has been told, and it is still on its way
    pair.prefill.peers.fence("d0")
    pair.world.run(until_us=pair.world.clock.now_us + 1_000)
    assert pair.hears(pair.prefill, Fenced)
    for node in pair.world.ranks("p0"):
        node.rank.scheduler.role.pool.release(ROOM)
    pair.prefill.memory.block(LAYER, PageId(0))[:] = bytes([2]) * 64
    pair.world.run()
    assert write.content is not None
    assert [pair.landed(page) for page in range(2)] == [1, 1]


def test_what_follows_a_write_that_is_given_up_happens_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Writes, "_strikes", lambda writes, kind: kind is Fault.UNSETTLED_WRITES)
    pair = Pair()
    seen: list[tuple[str, str]] = []
    pair.world.sequels.append(lambda sender, receiver: seen.append((sender.name, receiver.name)))
    for _ in range(2):
        pair.post()
        pair.world.run()
    assert seen == [("p0.0", "d0.0")]


# restarts


@pytest.mark.parametrize("fences", [False, True])
def test_a_write_of_the_dead_lands_until_its_receiver_fences(fences: bool):
    pair = Pair(SLOW)
    pair.post()
    pair.world.epochs.restart("p0", 1_000)
    if fences:
        pair.decode.peers.fence("p0")
    pair.world.run()
    assert pair.landed() == (not fences)
    assert pair.hears(pair.prefill, Moved) == [], "the dead hear nothing"


def test_a_write_to_the_dead_lands_nowhere():
    pair = Pair(SLOW)
    pair.post()
    pair.world.epochs.restart("d0", 1_000)
    pair.world.run()
    assert pair.landed() == 0
    assert pair.world.node("d0", RankId(0)).memory.block(LAYER, PageId(0))[0] == 0
    (moved,) = pair.hears(pair.prefill, Moved)
    assert isinstance(moved, Moved)
    assert moved.result is not Written.OK


@pytest.mark.parametrize("group", PAIR)
def test_a_group_that_was_restarted_is_met_as_another_incarnation(group: str):
    pair = Pair()
    other = pair.decode if group == "p0" else pair.prefill
    pair.heard.clear()
    pair.world.epochs.restart(group, 5_000)
    pair.world.epochs.restart(group, 5_000)  # it is gone already
    pair.world.run()
    assert pair.met()
    assert sorted(map(str, pair.hears(other, PeerLost))) == [str(PeerLost(group, RankId(rank))) for rank in (0, 1)]
    instances = [event.hello.instance for event in pair.hears(other, PeerOpened) if isinstance(event, PeerOpened)]
    assert instances == [(2, 0), (2, 0)]
    assert pair.world.node(group, RankId(0)).name == f"{group}.0#2"


@pytest.mark.parametrize("group", PAIR)
def test_a_request_of_a_group_that_ends_is_lost_and_the_next_one_is_served(group: str):
    pair = Pair()
    pair.world.router.submit(WORK, PAIR)
    pair.world.clock.after(1_500, lambda: pair.world.epochs.restart(group, 5_000))
    pair.world.run()
    assert pair.world.client.answer(ROOM).ended in (Reason.GROUP_LOST, Reason.TRANSFER_FAILED), "whoever noticed first"
    pair.world.check_at_rest()
    again = Work(Room(RequestId(2), 1), WORK.prompt, 6, (), Sampling(), None)
    pair.world.router.submit(again, PAIR)
    pair.world.run()
    assert pair.world.client.answer(again.room).ended is Reason.LENGTH
    pair.world.client.check()
    pair.world.check_at_rest()


def test_what_decode_has_begun_does_not_need_prefill():
    pair = Pair()
    pair.world.router.submit(WORK, PAIR)
    answer = pair.world.client.answer(ROOM)
    while answer.needs("p0"):
        assert pair.world.clock.advance()
    pair.world.epochs.restart("p0", 5_000)
    pair.world.run()
    assert answer.ended is Reason.LENGTH
    pair.world.client.check()
    pair.world.check_at_rest()


def test_a_group_that_is_away_is_sent_nothing():
    pair = Pair()
    pair.world.epochs.restart("d0", 50_000)
    pair.world.clock.after(20_000, lambda: pair.world.router.submit(WORK, PAIR))
    pair.world.clock.after(90_000, lambda: pair.world.router.submit(WORK, PAIR))  # a duplicate
    pair.world.run()
    assert pair.world.client.answer(ROOM).ended is Reason.GROUP_LOST
    assert len(pair.world.ticks) == 0
