"""One disturbance at every moment of a short run: whatever state things are in, all ends well and nothing is left."""

from collections.abc import Callable

import pytest

from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.events import PeerLost
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.case import LAYERS, PAIR
from tandem.sim.client import Client
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World

SHAPES = [(1, 1), (2, 2), (3, 1)]
STRIDE = {(1, 1): 2, (2, 2): 4, (3, 1): 5}
"""Larger shapes have more moments, and look at every so-manieth."""
LIMITS = Limits(page_size=4, num_pages=12, context=64, chunked_prefill_size=8, max_prefill_tokens=8)
DEADLINE_MS = 2_000


def work(number: int, prompt: int = 10, max_tokens: int = 4) -> Work:
    tokens = tuple(32 + (number + index) % 90 for index in range(prompt))
    return Work(Room(RequestId(number), 1), tokens, max_tokens, (), Sampling(), None)


FIRST, SECOND = work(1), work(2, prompt=13)


class Run:
    """Two requests that compete for pages, and how many events that takes."""

    def __init__(self, shape: tuple[int, int], pace: Pace | None = None, remaining_ms: int = DEADLINE_MS) -> None:
        groups = (
            Group(RoleName.PREFILL, "p0", split_layers(LAYERS, shape[0])),
            Group(RoleName.DECODE, "d0", split_layers(LAYERS, shape[1])),
        )
        self.client = Client(content_of)
        self.world = World(5, Cluster(groups, LIMITS, pace or Pace()), build_engine, self.client)
        self.world.router.submit(FIRST, PAIR, remaining_ms)
        self.world.router.submit(SECOND, PAIR, DEADLINE_MS)

    def until(self, moment: int) -> bool:
        """Let this many events happen; False if there are not so many before the deadlines."""
        for _ in range(moment):
            if not self.world.clock.advance() or self.world.clock.now_us > DEADLINE_MS * 500:
                return False
        return True

    def ended(self) -> dict[int, Reason | None]:
        """Runs to the end; why each request has ended."""
        self.world.run()
        self.client.check()
        self.world.check_at_rest()
        return {int(answer.work.room.rid): answer.ended for answer in self.client.answers.values()}


def at_every_moment(shape: tuple[int, int], disturb: Callable[[World], None], check: Callable[[Run], None]) -> int:
    """Returns how many moments there were."""
    moment = 0
    while (run := Run(shape)).until(moment):
        disturb(run.world)
        try:
            check(run)
        except Exception as error:
            error.add_note(f"disturbed after {moment} events, shape {shape}")
            raise
        moment += STRIDE[shape]
    return moment


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("told", [("p0", "d0"), ("p0",), ("d0",)], ids="+".join)
def test_a_client_may_leave_at_any_moment(shape: tuple[int, int], told: tuple[str, ...]):
    seen: set[Reason | None] = set()

    def check(run: Run) -> None:
        ended = run.ended()
        assert ended[2] is Reason.LENGTH, "an abort concerns only its own request"
        assert ended[1] in (Reason.CLIENT_GONE, Reason.LENGTH)
        assert run.world.ticks.busy_until_us < DEADLINE_MS * 500, "somebody waited for a deadline"
        seen.add(ended[1])

    moments = at_every_moment(shape, lambda world: world.router.cancel(FIRST, told), check)
    assert moments > 150
    assert seen == {Reason.CLIENT_GONE, Reason.LENGTH}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", ["p0", "d0"])
def test_a_peer_may_be_lost_at_any_moment(shape: tuple[int, int], side: str):
    """Its last rank tells nobody and everybody still hears: a lost connection, seen from one side by one rank."""
    seen: set[Reason | None] = set()

    def lose(world: World) -> None:
        other = "d0" if side == "p0" else "p0"
        size = shape[side == "d0"]
        world.node(side, RankId(size - 1)).on(PeerLost(other, RankId(0)))

    def check(run: Run) -> None:
        ended = run.ended()
        assert set(ended.values()) <= {Reason.TRANSFER_FAILED, Reason.DEADLINE, Reason.LENGTH}
        seen.update(ended.values())

    at_every_moment(shape, lose, check)
    assert seen >= {Reason.TRANSFER_FAILED, Reason.LENGTH}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_may_come_again_at_any_moment(shape: tuple[int, int]):
    def check(run: Run) -> None:
        assert set(run.ended().values()) == {Reason.LENGTH}

    at_every_moment(shape, lambda world: world.router.submit(FIRST, PAIR, DEADLINE_MS), check)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_deadline_may_pass_at_any_moment(shape: tuple[int, int]):
    slow = Pace(layer_us=(1_000, 3_000), message_us=(1_000, 4_000), write_us=(2_000, 20_000), handshake_us=(0, 3_000))
    seen = []
    for remaining_ms in range(0, 400, 5):
        ended = Run(shape, slow, remaining_ms).ended()
        assert ended[2] is Reason.LENGTH
        seen.append(ended[1])
    assert set(seen) == {Reason.DEADLINE, Reason.LENGTH}
    assert seen.count(Reason.DEADLINE) > 8


EDGES = [
    pytest.param(work(1, prompt=1, max_tokens=1), id="one token in, one out"),
    pytest.param(work(1, prompt=1, max_tokens=2), id="one decode step"),
    pytest.param(work(1, prompt=3), id="shorter than a page"),
    pytest.param(work(1, prompt=4), id="exactly a page"),
    pytest.param(work(1, prompt=8), id="exactly a chunk"),
    pytest.param(work(1, prompt=16, max_tokens=2), id="whole pages and chunks"),
    pytest.param(work(1, prompt=45, max_tokens=4), id="the whole pool"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_what_fits(shape: tuple[int, int], edge: Work):
    run = Run(shape)
    run.world = World(5, run.world._cluster, build_engine, run.client)
    run.client.answers.clear()
    run.world.router.submit(edge, PAIR)
    assert run.ended() == {1: Reason.LENGTH}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "much", [work(3, prompt=50, max_tokens=2), work(3, prompt=44, max_tokens=6), work(3, prompt=0)]
)
def test_what_can_never_fit_is_refused_at_once(shape: tuple[int, int], much: Work):
    run = Run(shape)
    run.world.router.submit(much, PAIR)
    assert run.ended() == {1: Reason.LENGTH, 2: Reason.LENGTH, 3: Reason.TOO_LARGE}


@pytest.mark.parametrize("shape", SHAPES)
def test_hundreds_may_come_at_once(shape: tuple[int, int]):
    """More than fit into one frame, one ballot, or the pages."""
    groups = (
        Group(RoleName.PREFILL, "p0", split_layers(LAYERS, shape[0])),
        Group(RoleName.DECODE, "d0", split_layers(LAYERS, shape[1])),
    )
    limits = Limits(page_size=4, num_pages=200, context=64)
    client = Client(content_of)
    world = World(5, Cluster(groups, limits, Pace()), build_engine, client)
    for number in range(1, 301):
        world.router.submit(work(number, prompt=1 + number % 3, max_tokens=2), PAIR)
    world.run()
    client.check()
    world.check_at_rest()
    assert {answer.ended for answer in client.answers.values()} == {Reason.LENGTH}


def test_chunks_do_not_pile_up_in_front_of_a_slow_last_stage():
    """The window of 2P ticks bounds the hidden states that wait, however long the prompt is."""
    groups = (Group(RoleName.PREFILL, "p0", (1, 7)), Group(RoleName.DECODE, "d0", (4, 4)))
    limits = Limits(page_size=4, num_pages=100, context=128, chunked_prefill_size=4, max_prefill_tokens=4)
    client = Client(content_of)
    world = World(5, Cluster(groups, limits, Pace(layer_us=(100, 100))), build_engine, client)
    world.router.submit(work(1, prompt=100, max_tokens=2), PAIR)
    waiting, last = [], world.node("p0", RankId(1))
    while world.clock.advance():
        waiting.append(last.compute.waiting)
    client.check()
    assert 1 < max(waiting) <= 4
