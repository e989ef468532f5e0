"""Named failures of whole ranks and groups, each as a run in virtual time that must end well.

The numbers are those of the scenario list. In every run no page is touched for a room that does not hold it, what is
delivered is a beginning of the reference, and at the end nothing is left on any rank.
"""

from collections.abc import Callable

import pytest

from consensus.stall import stalled
from decode.intake import State
from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.effects import Post
from tandem.core.ids import LEADER, RankId, RequestId, Room
from tandem.core.messages import Heartbeat
from tandem.core.requests import Sampling, Work
from tandem.sim.case import LAYERS, PAIR
from tandem.sim.client import Client
from tandem.sim.epochs import DEAD_US, FORM_US
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World

SIZES = [2, 3, 4, 8]
LIMITS = Limits(page_size=4, num_pages=64, context=96, chunked_prefill_size=8, max_prefill_tokens=16, quiesce_ms=100)
DOWN_US = 40_000
SECOND_US = 1_000_000
STORE_US = 2_000
"""For a word to rank 0 and from there to everybody."""


def work(number: int, prompt: int = 30, max_tokens: int = 30) -> Work:
    tokens = tuple(32 + (7 * number + index) % 90 for index in range(prompt))
    return Work(Room(RequestId(number), 1), tokens, max_tokens, (), Sampling(), None)


class Run:
    """One or two pairs of groups; the second one is small."""

    def __init__(self, prefill: int, decode: int, *, pairs: int = 1, pace: Pace | None = None) -> None:
        sizes = [(prefill, decode), (1, 2)][:pairs]
        groups = [
            Group(role, f"{role.value[0]}{number}", split_layers(LAYERS, size))
            for number, pair in enumerate(sizes)
            for role, size in zip((RoleName.PREFILL, RoleName.DECODE), pair, strict=True)
        ]
        self.client = Client(content_of)
        self.world = World(7, Cluster(tuple(groups), LIMITS, pace or Pace()), build_engine, self.client)

    def submit(self, *works: Work, to: tuple[str, str] = PAIR) -> None:
        for each in works:
            self.world.router.submit(each, to, retries=2)

    def node(self, group: str, rank: int) -> Node:
        return self.world.node(group, RankId(rank))

    def until(self, condition: Callable[[], object]) -> None:
        """Let things happen until the condition holds."""
        while not condition():
            assert self.world.clock.advance(), "it never came to that"

    def within(self, us: int) -> None:
        self.world.run(until_us=self.world.clock.now_us + us)

    def tokens(self, number: int) -> int:
        """Delivered so far."""
        return len(self.client.answer(Room(RequestId(number), 1)).tokens)

    def ended(self) -> dict[int, str | None]:
        """Runs to the end, holds the oracle against it; what each client is told."""
        self.world.run()
        self.client.check()
        self.world.check_at_rest()
        return {int(answer.work.room.rid): answer.code for answer in self.client.answers.values()}


@pytest.fixture(params=SIZES, ids=lambda size: f"P{size}")
def size(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


# requests that come again


@pytest.mark.parametrize("moment", ["queued", "mid decode", "after the end", "in the next epoch"])
def test_s12_a_request_that_was_dispatched_comes_again(size: int, moment: str):
    """S12: It is the same one: answered once, computed once, and never by an incarnation that it was not meant for."""
    run = Run(size, size)
    sent: list[Post] = []
    note_posts(run, sent)
    run.submit(work(1))
    if moment == "mid decode":
        run.until(lambda: run.tokens(1) > 3)
    elif moment == "after the end":
        run.until(lambda: run.client.answer(work(1).room).code)
    elif moment == "in the next epoch":
        run.until(lambda: run.tokens(1) > 3)
        run.world.epochs.crash(run.node("d0", 1), 1_000)
        run.until(lambda: run.world.epochs.formed)
    for _ in range(3):
        run.submit(work(1))
    assert run.ended() == {1: "group_lost" if moment == "in the next epoch" else "length"}
    assert {post.room.attempt for post in sent} == {1}
    assert len({(post.layer, block) for post in sent for block in post.blocks}) == sum(len(p.blocks) for p in sent)


def note_posts(run: Run, sent: list[Post]) -> None:
    for node in run.world.ranks("p0"):
        node.writes.post = noting(node.writes.post, sent)  # type: ignore[method-assign]


def noting(post: Callable[[Post], None], sent: list[Post]) -> Callable[[Post], None]:
    def noted(effect: Post) -> None:
        sent.append(effect)
        post(effect)

    return noted


def test_s12_a_request_that_went_on_elsewhere_is_still_computed_by_who_was_taken_for_lost():
    """S12: Both pairs work on it for a moment. Its client hears the newest attempt, and the old one is cancelled."""
    run = Run(2, 2, pairs=2)
    run.submit(work(1))
    run.until(lambda: run.tokens(1) > 3)
    run.world.router.dispatch.on_lost("d0", "somebody was wrong")
    run.until(lambda: run.client.answer(work(1).room).told.get((Room(RequestId(1), 2), "d1")))
    assert run.ended() == {1: "length"}
    assert run.client.answer(work(1).room).attempt.room.attempt == 2


# latency


def test_s17_the_last_token_is_the_answer_whatever_is_still_to_be_released(size: int):
    """S17: Ranks hold pages for the request when its client has all of it."""
    run = Run(size, size)
    run.submit(work(1))
    run.until(lambda: run.client.answer(work(1).room).code)
    assert any(node.rank.scheduler.role.pool.held(work(1).room) for node in run.world.ranks("d0"))
    assert run.ended() == {1: "length"}


def test_s18_one_rank_sleeps_for_two_seconds(size: int):
    """S18: Its ring waits within what the ring allows, and says for whom; other groups go on; nobody loses anything."""
    run = Run(size, size, pairs=2)
    run.submit(work(1, max_tokens=60))
    run.until(lambda: run.tokens(1) > 3)
    run.node("d0", 1).stall(2 * SECOND_US)
    run.submit(*(work(number) for number in range(2, 8)), to=("p1", "d1"))
    run.within(SECOND_US)
    assert all(run.client.answer(work(number).room).code == "length" for number in range(2, 8))
    assert run.client.answer(work(1).room).code is None
    assert "rank 1" in (stalled([beat(node) for node in run.world.ranks("d0")], 900) or "")
    assert run.ended()[1] == "length"


def beat(node: Node) -> Heartbeat:
    """What a rank would say that has stood still for a second."""
    rank = node.rank
    return Heartbeat(rank.place.epoch, rank.place.rank, rank.scheduler.tick, rank.awaiting() or "", 1_000)


# ranks


HOWS: dict[str, Callable[[Run, Node], None]] = {
    "killed": lambda run, node: run.world.epochs.crash(node, DOWN_US),
    "host gone": lambda run, node: run.world.epochs.crash(node, DOWN_US),
    "stopped": lambda run, node: run.world.epochs.freeze(node, 10 * DOWN_US, None),
    "stopped and replaced": lambda run, node: run.world.epochs.freeze(node, 10 * DOWN_US, DOWN_US),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("group", PAIR)
@pytest.mark.parametrize("which", ["first", "last"])
def test_s19_a_rank_is_gone(size: int, how: str, group: str, which: str, monkeypatch: pytest.MonkeyPatch):
    """S19: Its fellows leave in time, clients get an honest answer, and the group serves again."""
    if how == "host gone":
        monkeypatch.setattr("tandem.sim.epochs.HANGS_UP", 0)
    run = Run(size, size)
    run.submit(work(1))
    run.until(lambda: run.tokens(1) > (3 if group == "d0" else -1) and run.node("p0", 0).rank.scheduler.tick > 1)
    victim = run.node(group, 0 if which == "first" else size - 1)
    before = run.world.ranks(group)
    HOWS[how](run, victim)
    run.within(DEAD_US[1] + STORE_US)
    assert all(node.dead for node in before if node is not victim)
    if how != "stopped":
        run.within(DOWN_US + FORM_US[1])
        assert run.world.epochs.formed == 1
    assert run.ended()[1] in ("group_lost", "kv_transfer_failed", "length"), "whether the group was back in time"
    run.submit(work(2))
    assert run.ended()[2] == "length"
    assert run.node(group, 0).rank.place.epoch == 2


@pytest.mark.parametrize("which", ["first", "last"])
def test_s32_one_prefill_process_restarts_and_its_fellows_do_not(size: int, which: str):
    """S32: At once, on the same address: its rooms fail everywhere, and no word or write of the old epoch counts."""
    run = Run(size, 2)
    run.submit(*(work(number) for number in range(1, 5)))
    run.until(lambda: run.node("p0", 0).writes.posted("d0"))
    engines = [node.engine for node in run.world.ranks("p0")]
    victim = 0 if which == "first" else size - 1
    run.world.epochs.crash(run.node("p0", victim), 1)
    run.until(lambda: run.world.epochs.formed)
    kept = [node.engine is engine for node, engine in zip(run.world.ranks("p0"), engines, strict=True)]
    assert kept == [rank != victim for rank in range(size)]
    assert set(run.ended().values()) <= {"length", "group_lost", "kv_transfer_failed"}
    run.submit(work(9))
    assert run.ended()[9] == "length"


@pytest.mark.parametrize("group", PAIR)
def test_s35_the_stage_that_dies_is_not_the_one_that_talks(size: int, group: str):
    """S35: The last rank, which no router is connected to. Requests go on at the other pair, and none is sent here."""
    run = Run(size, size, pairs=2)
    run.submit(*(work(number) for number in range(1, 9)))
    run.until(lambda: transferring(run) or run.tokens(1))
    run.world.epochs.crash(run.node(group, size - 1), SECOND_US)
    run.within(DEAD_US[1] + STORE_US)
    assert group not in [head.group.name for head in run.world.router.membership.usable()]
    run.submit(work(20))
    assert group not in run.client.answer(work(20).room).groups
    ended = run.ended()
    assert ended[20] == "length"
    assert set(ended.values()) == {"length"}


def transferring(run: Run) -> bool:
    requests = run.node("d0", LEADER).rank.scheduler.role._requests
    return any(request.state is State.TRANSFERRING for request in requests.values())


def test_a_limit_is_the_same_after_an_epoch(size: int):
    """What the next epoch starts with is what the first one had: nothing of it is used up."""
    run = Run(size, 2)
    free = run.node("p0", 0).rank.scheduler.role.pool.counts()["free"]
    run.submit(work(1))
    run.until(lambda: run.tokens(1))
    run.world.epochs.crash(run.node("p0", size - 1), 1_000)
    run.ended()
    assert [node.rank.scheduler.role.pool.counts()["free"] for node in run.world.ranks("p0")] == [free] * size
