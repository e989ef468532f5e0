"""Role x rank x point x what happens there, while requests run on two pairs: every one is answered exactly.

Each cell proves that it was hit. `tests/processes` has the same matrix on processes.
"""

import random
from collections import Counter
from collections.abc import Callable
from itertools import product

import msgspec
import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import Client
from tandem.sim.crashes import Doom, Point
from tandem.sim.faults import Fault, Swarm
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, World

GROUPS = (
    Group(RoleName.PREFILL, "p0", (3, 3, 2)),
    Group(RoleName.DECODE, "d0", (2, 4, 2)),
    Group(RoleName.PREFILL, "p1", (8,)),
    Group(RoleName.DECODE, "d1", (5, 3)),
)
LIMITS = Limits(page_size=4, num_pages=120, context=96, chunked_prefill_size=8, max_prefill_tokens=16, quiesce_ms=100)
STREAMS = 8
RANKS = {"first": 0, "middle": 1, "last": 2}
HOWS: dict[str, Callable[[World, Node], None]] = {
    "dies": lambda world, node: world.epochs.crash(node, 30_000),
    "freezes and wakes": lambda world, node: world.epochs.freeze(node, 60_000, None),
    "freezes and is replaced": lambda world, node: world.epochs.freeze(node, 200_000, 10_000),
}
CELLS = [
    cell
    for cell in product(("p0", "d0"), RANKS, Point, HOWS)
    if cell[0] == "d0" or cell[2] is not Point.MID_DECODE  # prefill does not
]


def work(number: int) -> Work:
    prompt = tuple(32 + (7 * number + index) % 90 for index in range(12 + 3 * number))
    return Work(Room(RequestId(number), 1), prompt, 24, (), Sampling(), None)


def made(point: Point) -> World:
    """Requests come to two pairs, over some time. Where polls are votes, prefill votes too."""
    limits = msgspec.structs.replace(LIMITS, transfer_consensus="ring" if point is Point.VOTE else "store")
    swarm = Swarm(1, (Fault.CRASHES, Fault.ZOMBIES))
    world = World(3, Cluster(GROUPS, limits), build_engine, Client(content_of), swarm)
    for number in range(1, STREAMS + 1):
        pair = ("p0", "d0") if number % 4 else ("p1", "d1")
        world.clock.at(
            3_000 * number, lambda number=number, pair=pair: world.router.submit(work(number), pair, retries=2)
        )
    return world


@pytest.mark.parametrize(
    ("group", "rank", "point", "how"), CELLS, ids=[f"{g} {r}, {p.value}, {h}" for g, r, p, h in CELLS]
)
def test_whatever_happens_to_a_rank_every_request_is_answered_exactly(group: str, rank: str, point: Point, how: str):
    world, struck = made(point), []

    def strike(node: Node) -> None:
        struck.append(node.name)
        HOWS[how](world, node)

    def victim() -> Node:
        return world.node(group, RankId(RANKS[rank]))

    if point is Point.RE_FORMING:
        world.epochs.on_formed[group] = lambda: world.clock.after(500, lambda: strike(victim()))
        world.clock.at(12_000, lambda: world.epochs.crash(world.node(group, RankId(1)), 5_000))
    else:
        doom = Doom(point, 3, strike, world.swarm, random.Random(f"{group} {rank} {how}"))
        world.clock.at(6_000, lambda: setattr(victim(), "doom", doom))
    world.run()
    assert len(struck) == 1
    world.client.check()
    world.check_at_rest()
    ended = Counter(answer.ended for answer in world.client.answers.values())
    assert ended[Reason.LENGTH] >= STREAMS - 2, "fences may cost some more attempts than they have"
    assert ended[Reason.LENGTH] + ended[Reason.TRANSFER_FAILED] == STREAMS
    assert world.epochs.formed == 1 + (point is Point.RE_FORMING)


def test_there_are_cells_enough():
    assert len(CELLS) >= 90
