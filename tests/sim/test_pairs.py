"""Two groups of each role share the requests: any two serve one, and what they give up goes on with others."""

from dataclasses import replace

import msgspec
import pytest
from mistakes.memory import quiet_when_anyone_is

from kvtransfer.peers import Peers
from tandem.core.config import Group, RoleName
from tandem.core.events import PeerLost, PeerOpened
from tandem.core.ids import RequestId, Room
from tandem.core.requests import Sampling, Work
from tandem.sim.case import Request, Variant, draw
from tandem.sim.oracle import StrayAccess
from tandem.sim.routes import routes
from tandem.sim.run import Result, Stalled, simulate
from tandem.sim.shrink import shrink

ONE, TWO = Variant(pairs=1), Variant(pairs=2)
SEEDS = range(306, 342)
GROUPS = (
    Group(RoleName.PREFILL, "p0", (8,)),
    Group(RoleName.DECODE, "d0", (4, 4)),
    Group(RoleName.PREFILL, "p1", (5, 3)),
    Group(RoleName.DECODE, "d1", (8,)),
)
ROUTES = (("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1"))
WORK = Work(Room(RequestId(1), 1), (72, 105, 33), 6, (), Sampling(), None)


# whole runs


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """One of each seed."""
    return [run(seed) for seed in SEEDS]


def run(seed: int) -> Result:
    try:
        return simulate(seed, TWO)
    except Exception as error:
        error.add_note(f"reproduce and shrink with: tandem sim --seed {seed} --pairs 2")
        raise


def test_every_seed_ends_well_with_two_pairs(results: list[Result]):
    assert [result.seed for result in results] == list(SEEDS)


def test_runs_with_two_pairs_cover_what_they_are_meant_to(results: list[Result]):
    assert sum(result.migrated for result in results) > 10
    assert sum(result.evicted for result in results) > 5
    assert sum(result.fences for result in results) > 2
    assert sum(result.aborted for result in results) > 20


def test_a_mistake_with_pages_is_found_with_two_pairs_too(monkeypatch: pytest.MonkeyPatch):
    quiet_when_anyone_is(monkeypatch)
    with pytest.raises(StrayAccess, match="given them away"):
        simulate(0, TWO)


def test_a_mistake_that_one_pair_hides_is_found(monkeypatch: pytest.MonkeyPatch):
    known_by_rank_alone(monkeypatch)
    simulate(0, ONE)
    with pytest.raises(Stalled, match="not answered"):
        simulate(0, TWO)


def known_by_rank_alone(patch: pytest.MonkeyPatch) -> None:
    """Open peers of all groups are kept in one table."""
    on_event, route, instance, renewed = Peers.on_event, Peers.route, Peers.instance, Peers.renewed

    def mixed(self: Peers, event: PeerOpened | PeerLost) -> None:
        match event:
            case PeerOpened(hello=hello):
                on_event(self, PeerOpened(msgspec.structs.replace(hello, group="")))
            case PeerLost(rank=rank):
                on_event(self, PeerLost("", rank))

    patch.setattr(Peers, "on_event", mixed)
    patch.setattr(Peers, "route", lambda self, group, first, last: route(self, "", first, last))
    patch.setattr(Peers, "instance", lambda self, group, rank: instance(self, "", rank))
    patch.setattr(Peers, "renewed", lambda self, group, rank, before: renewed(self, "", rank, before))


# what is drawn


@pytest.mark.parametrize("seed", range(8))
def test_more_pairs_change_only_who_serves_whom(seed: int):
    one, two = draw(seed, ONE), draw(seed, TWO)
    first = len(one.cluster.groups)
    assert two.cluster.groups[:first] == one.cluster.groups
    assert [group.role for group in two.cluster.groups[first:]] == [group.role for group in one.cluster.groups]
    assert (two.kinds, two.cluster.limits, two.heal_us) == (one.kinds, one.cluster.limits, one.heal_us)
    both = zip(one.requests, two.requests, strict=False)
    assert all(wherever(first) == wherever(second) for first, second in both)


def wherever(request: Request) -> Request:
    """What a client asks for, and when, whoever serves it."""
    return replace(request, groups=(), told=(), late_us=dict.fromkeys(range(len(request.late_us))))


def test_any_two_groups_serve_a_request():
    case = next(case for case in map(draw_two, range(20)) if len(case.cluster.groups) == 4 and len(case.requests) > 20)
    assert {request.groups for request in case.requests} == set(ROUTES)
    assert all(set(request.told) <= set(request.groups) for request in case.requests)
    assert [probe.groups for probe in case.probes][: len(ROUTES)] == list(ROUTES), "at the end, to see that all serve"


def draw_two(seed: int):
    return draw(seed, TWO)


def test_colocated_groups_are_routes_of_their_own():
    alone = Group(RoleName.COLOCATED, "c0", (8,))
    assert routes((*GROUPS, alone)) == (("c0",), *ROUTES)


def test_shrinking_takes_pairs_away_that_are_not_needed():
    assert shrink(1, TWO, lambda variant: True).pairs == 1
    assert shrink(1, TWO, lambda variant: variant.pairs == 2).pairs == 2
