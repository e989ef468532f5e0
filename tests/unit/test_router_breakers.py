"""Who fails again and again gets nothing for a while, then one request as a trial."""

import pytest

from router.breakers import BREAKER_NEXT, Breaker, BreakerInput, Breakers, BreakerState
from tandem.core.errors import IllegalTransition

EDGE = ("p0", "d0")
OPEN_S = 30.0


def breakers(failures_max: int = 3) -> Breakers:
    return Breakers(failures_max, OPEN_S)


def left_s(of: Breakers, now: float, names: tuple[str, ...] = EDGE) -> float:
    return of.rest(names, now)[1]


def test_failures_in_a_row_open_it_and_fewer_do_not():
    some = breakers()
    for _ in range(2):
        some.failed(EDGE, 0.0)
    assert left_s(some, 0.0) == 0
    some.failed(EDGE, 0.0)
    assert some.rest(EDGE, 10.0) == (EDGE, 20.0)


def test_a_success_between_them_begins_to_count_anew():
    some = breakers()
    for _ in range(10):
        some.failed(EDGE, 0.0)
        some.failed(EDGE, 0.0)
        some.passed(EDGE)
    assert some.state(EDGE) is BreakerState.CLOSED
    assert some.failures(EDGE) == 0


def test_an_edge_that_fails_takes_nothing_from_the_other_edges_of_its_groups():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    assert left_s(some, 0.0)
    assert not left_s(some, 0.0, ("p0", "d1"))
    assert not left_s(some, 0.0, ("p1", "d0"))


def test_a_group_that_fails_rests_with_every_route_through_it():
    some = breakers(1)
    some.failed(("d0",), 0.0)
    assert left_s(some, 0.0) == left_s(some, 0.0, ("p1", "d0")) == OPEN_S
    assert not left_s(some, 0.0, ("p0", "d1"))


def test_after_its_time_there_is_one_trial():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    assert not left_s(some, OPEN_S)
    some.tried(EDGE, OPEN_S)
    assert some.state(EDGE) is BreakerState.TRIAL
    assert left_s(some, OPEN_S), "one is enough"


def test_a_trial_that_ends_well_closes_it():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    some.tried(EDGE, OPEN_S)
    some.passed(EDGE)
    assert some.state(EDGE) is BreakerState.CLOSED
    assert not left_s(some, OPEN_S)


def test_a_trial_that_fails_opens_it_again():
    some = breakers(3)
    for _ in range(3):
        some.failed(EDGE, 0.0)
    some.tried(EDGE, OPEN_S)
    some.failed(EDGE, OPEN_S + 1)
    assert left_s(some, OPEN_S + 1) == OPEN_S


def test_a_trial_that_tells_nothing_is_followed_by_another():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    some.tried(EDGE, OPEN_S)
    some.nothing(EDGE, OPEN_S + 1)
    assert not left_s(some, OPEN_S + 1)


def test_a_trial_that_never_ends_is_not_waited_for():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    some.tried(EDGE, OPEN_S)
    assert left_s(some, 2 * OPEN_S) == 0
    some.tried(EDGE, 2 * OPEN_S)
    assert left_s(some, 2 * OPEN_S) == OPEN_S


def test_failures_count_against_a_route_only_until_its_trial_is_due():
    some = breakers(3)
    some.failed(EDGE, 0.0)
    some.failed(("p0",), 0.0)
    assert some.lately(EDGE, OPEN_S - 1) == 2
    assert some.lately(EDGE, OPEN_S) == 0, "else nobody would ever try it"
    assert some.failures(EDGE) == 1


def test_groups_that_are_gone_are_forgotten():
    some = breakers(1)
    some.failed(EDGE, 0.0)
    some.failed(("d1",), 0.0)
    some.forget(["p0", "d1"])
    assert some.state(EDGE) is BreakerState.CLOSED
    assert some.state(("d1",)) is BreakerState.OPEN


@pytest.mark.parametrize("state", BreakerState)
@pytest.mark.parametrize("happened", BreakerInput)
def test_every_state_takes_every_input_of_the_table_and_no_other(state: BreakerState, happened: BreakerInput):
    breaker = Breaker(1, OPEN_S)
    breaker.state = state
    if (state, happened) in BREAKER_NEXT:
        breaker._follow(happened)
        assert breaker.state is BREAKER_NEXT[state, happened]
    else:
        with pytest.raises(IllegalTransition):
            breaker._follow(happened)
