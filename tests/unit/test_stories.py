"""Runs told in words. After a wanted change: `pytest tests/unit/test_stories.py --rewrite`, then read the diff."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import Client
from tandem.sim.run import build_engine
from tandem.sim.world import Cluster, Pace, World

STORIES = Path(__file__).parent.parent / "stories"
CLUSTER = Cluster(
    (Group(RoleName.PREFILL, "p0", (4, 4)), Group(RoleName.DECODE, "d0", (6, 2))),
    Limits(page_size=4, num_pages=8, context=32, chunked_prefill_size=4, max_prefill_tokens=4),
    Pace(layer_us=(20, 20), message_us=(50, 50), write_us=(60, 60), handshake_us=(0, 0)),
)
WORK = Work(Room(RequestId(1), 1), (72, 101, 108, 108, 111, 33), 3, (), Sampling(), None)


def one_request(world: World) -> None:
    world.clock.at(1_000, partial(world.router.submit, WORK, ("p0", "d0")))


def client_leaves_during_the_transfer(world: World) -> None:
    one_request(world)
    world.clock.at(1_400, partial(world.router.cancel, WORK, ("p0", "d0")))


@pytest.mark.parametrize(
    ("happens", "ended"),
    [(one_request, Reason.LENGTH), (client_leaves_during_the_transfer, Reason.CLIENT_GONE)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_story_of(happens: Callable[[World], None], ended: Reason, rewrite: bool):
    path = STORIES / f"{happens.__name__}.txt"
    preface = path.read_text().split("\n\n")[0].rstrip()
    story = "\n".join([preface, "", *told(happens, ended), ""])
    if rewrite:
        path.write_text(story)
    assert path.read_text() == story


def told(happens: Callable[[World], None], ended: Reason) -> list[str]:
    lines: list[str] = []
    client = Client()
    world = World(1, CLUSTER, build_engine, client)
    world.tell = lines.append
    happens(world)
    world.run()
    world.check_at_rest()
    assert client.answers[WORK.room].ended is ended
    return lines
