"""A route's cost is a pure function of what is known, and each thing that is known can decide."""

from typing import Any

import msgspec
import pytest
from desk import head

from router.cost import Decoding, Prefilling, Sight, ranked
from router.placement import routes
from router.policies import POLICIES, PowerOfTwo, policy_of
from tandem.core.config import RoleName

GROUPS = ("p0", "p1", "d0", "d1")
ROLES = {"p": RoleName.PREFILL, "d": RoleName.DECODE, "c": RoleName.COLOCATED}
ROUTES = routes([head(ROLES[name[0]], name) for name in GROUPS])
PROMPT, USUAL = 10_000, 1000.0


def sight(**known: dict[str, Any]) -> Sight:
    """Four groups that are equal but for what is given of them by name."""
    prefill = {"cached": 0, "queued": 0, "lately": 0.0}
    decode = {"cached": 0, "free": 10**6, "requests": 0, "lately": 0.0}
    failures = known.pop("failures", {})
    return Sight(
        PROMPT,
        USUAL,
        {name: Prefilling(**prefill | known.get(name, {})) for name in GROUPS[:2]},
        {name: Decoding(**decode | known.get(name, {})) for name in GROUPS[2:]},
        failures,
    )


def first(**known: dict[str, Any]) -> tuple[str, ...]:
    return ranked(ROUTES, sight(**known))[0].route.names


CHEAPER = {
    "its prompt is cached": {"p1": {"cached": 4096}},
    "less waits there": {"p0": {"queued": 5000}},
    "less was computed there lately": {"p0": {"lately": 5000.0}},
}


@pytest.mark.parametrize("known", CHEAPER.values(), ids=CHEAPER)
def test_a_prefill_group_is_cheaper_when(known: dict[str, Any]):
    assert first(**known) == ("p1", "d0")


CHEAPER_TO = {
    "its prompt is there": {"d1": {"cached": 4096}},
    "there is more room": {"d0": {"free": 100}},
    "fewer requests are there": {"d0": {"requests": 3}},
    "less was sent there lately": {"d0": {"lately": 5000.0}},
}


@pytest.mark.parametrize("known", CHEAPER_TO.values(), ids=CHEAPER_TO)
def test_a_decode_group_is_cheaper_when(known: dict[str, Any]):
    assert first(**known) == ("p0", "d1")


def test_an_edge_that_failed_is_avoided_and_its_groups_are_not():
    assert first(failures={("p0", "d0"): 1}) == ("p0", "d1")


def test_of_equals_the_first_by_name_is_taken_in_any_order():
    assert first() == ("p0", "d0")
    assert ranked(ROUTES[::-1], sight())[0].route.names == ("p0", "d0")


def test_a_hit_is_worth_twenty_times_as_many_tokens_that_wait():
    assert first(p1={"cached": 1000, "queued": 19_999}) == ("p1", "d0")
    assert first(p1={"cached": 1000, "queued": 20_001}) == ("p0", "d0")


def test_a_group_that_does_far_more_than_the_others_gives_a_hit_up():
    assert first(p1={"cached": 4096, "lately": 12_000.0}) == ("p1", "d0"), (
        "it is more than the mean and four usual prompts, but not by much"
    )
    assert first(p1={"cached": 4096, "lately": 30_000.0}) == ("p0", "d0")


def test_what_is_equal_on_all_groups_changes_nothing():
    a_lot = {"lately": 1e9}
    assert first(p0=a_lot, p1=a_lot | {"cached": 16}, d0=a_lot, d1=a_lot) == ("p1", "d0")


def test_the_parts_add_up_to_the_cost():
    (one, *_) = ranked(ROUTES, sight(p0={"queued": 100, "cached": 160}, d0={"cached": 160, "requests": 2, "free": 40}))
    assert sum(msgspec.structs.asdict(one.parts).values()) == one.parts.cost > 0


def test_a_group_that_does_both_transfers_nothing():
    alone = routes([head(RoleName.COLOCATED, "c0")])
    known = Sight(PROMPT, USUAL, {"c0": Prefilling(160, 0, 0.0)}, {"c0": Decoding(160, 10**6, 0, 0.0)}, {})
    (one,) = ranked(alone, known)
    assert (one.parts.transfer, one.parts.cost) == (0, PROMPT - 160)


# policies


def look(known: Sight):
    return lambda routes: known


def test_the_default_takes_the_cheapest():
    chosen = POLICIES["cache_aware"]().choose(ROUTES, look(sight(p1={"cached": 4096}, d1={"cached": 4096})))
    assert chosen is not None
    assert chosen.names == ("p1", "d1")


def test_power_of_two_takes_the_less_busy_of_two_and_looks_at_no_cache():
    busy = sight(p0={"queued": 10**6, "cached": PROMPT}, d0={"requests": 10**6})
    policy = PowerOfTwo(seed=1)
    turns = [policy.choose(ROUTES, look(busy)) for _ in range(400)]
    counts = {names: sum(route.names == names for route in turns if route) for names in (one.names for one in ROUTES)}
    assert counts["p0", "d0"] == 0, "whatever it is drawn with has less to do"
    assert counts["p1", "d1"] > 150, "half of all pairs have it"


def test_equal_seeds_draw_equally():
    turns = [[policy.choose(ROUTES, look(sight())) for _ in range(50)] for policy in (PowerOfTwo(3), PowerOfTwo(3))]
    assert turns[0] == turns[1] != [PowerOfTwo(4).choose(ROUTES, look(sight())) for _ in range(50)]


def test_routers_side_by_side_draw_other_groups():
    routers = [policy_of("power_of_two", seed) for seed in (1, 2)]
    drawn = [[one.choose(ROUTES, look(sight())) for _ in range(50)] for one in routers]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_route_no_policy_chooses_one(policy: Any):
    assert POLICIES[policy]().choose([], look(sight())) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_the_only_route_is_taken(policy: Any):
    assert POLICIES[policy]().choose(ROUTES[:1], look(sight())) == ROUTES[0]
