"""Routes take turns, and only groups that fit each other are paired."""

from collections import Counter
from typing import NoReturn

from router.placement import routes
from router.policies import RoundRobin
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId
from tandem.core.members import Member


def head(name: str, fingerprint: str = "f") -> Member:
    role = {"p": RoleName.PREFILL, "d": RoleName.DECODE, "c": RoleName.COLOCATED}[name[0]]
    return Member(Group(role, name, (1,)), RankId(0), 1, 1, "h", fingerprint, "m", "", "", "", Limits())


def look(_: object) -> NoReturn:
    raise AssertionError("it takes turns, whatever is known")


def turns(heads: list[Member], count: int, robin: RoundRobin | None = None) -> list[tuple[str, ...] | None]:
    robin = robin or RoundRobin()
    chosen = [robin.choose(routes(heads), look) for _ in range(count)]
    return [route and route.names for route in chosen]


def test_every_route_gets_its_turn():
    heads = [head("p0"), head("p1"), head("d0"), head("d1"), head("d2")]
    assert set(Counter(turns(heads, 60)).values()) == {10}


def test_no_group_is_hit_twice_while_another_waits():
    assert turns([head("p0"), head("p1"), head("d0"), head("d1")], 2) == [("p0", "d0"), ("p1", "d1")]


def test_only_equal_fingerprints_are_paired():
    heads = [head("p0", "old"), head("p1", "new"), head("d0", "new")]
    assert turns(heads, 3) == [("p1", "d0")] * 3


def test_without_a_route_there_is_none():
    assert turns([], 1) == [None]
    assert turns([head("p0"), head("p1")], 1) == [None]
    assert turns([head("p0", "a"), head("d0", "b")], 1) == [None]


def test_a_route_that_comes_late_does_not_get_everything():
    robin = RoundRobin()
    turns([head("p0"), head("d0")], 50, robin)
    later = turns([head("p0"), head("d0"), head("d1")], 10, robin)
    assert Counter(later) == {("p0", "d0"): 5, ("p0", "d1"): 5}


def test_a_colocated_group_is_a_route_of_its_own():
    assert turns([head("c0"), head("c1", "other")], 4) == [("c0",), ("c1",)] * 2


def test_both_kinds_take_turns():
    assert Counter(turns([head("c0"), head("p0"), head("d0")], 10)) == {("c0",): 5, ("p0", "d0"): 5}


def test_a_route_reads_well_in_a_log():
    assert [str(route) for route in routes([head("p0"), head("c0"), head("d0")])] == ["c0", "p0 and d0"]
