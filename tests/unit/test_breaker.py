"""The breaker of an edge: its table, every pair of state and input, and when there is a next trial."""

from itertools import product

import pytest

from kvtransfer.breaker import BACK_OFF_MAX_S, BACK_OFF_S, BREAKER_NEXT, MAX_FAILED, Breaker, BreakerInput, BreakerState
from tandem.core.errors import IllegalTransition
from tandem.core.tables import follow

DIAGRAM = """
    TRIAL  BEGUN  TRIAL
    TRIAL  PASSED CLOSED
    TRIAL  FAILED OPEN
    CLOSED BEGUN  TRIAL
    CLOSED FAILED OPEN
    OPEN   BEGUN  TRIAL
"""
LEGAL = {
    (BreakerState[one], BreakerInput[what]): BreakerState[other]
    for one, what, other in (line.split() for line in DIAGRAM.strip().splitlines())
}


@pytest.mark.parametrize(("state", "happened"), [*product(BreakerState, BreakerInput)])
def test_every_pair_moves_on_or_raises(state: BreakerState, happened: BreakerInput) -> None:
    expected = LEGAL.get((state, happened))
    if expected is not None:
        assert follow(BREAKER_NEXT, state, happened, "it") is expected
        return
    with pytest.raises(IllegalTransition, match=happened.value):
        follow(BREAKER_NEXT, state, happened, "it")


def closed(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    assert breaker.begin(now_s)
    breaker.tried(None, now_s)
    return breaker


def fail(breaker: Breaker, now_s: float) -> None:
    """As many writes as it takes."""
    assert [breaker.wrote(False, now_s) for _ in range(MAX_FAILED)] == [True] * (MAX_FAILED - 1) + [False]


def test_a_new_edge_is_tried_at_once() -> None:
    assert Breaker().begin(0.0)


def test_writes_that_fail_in_a_row_open_it_and_one_that_does_not_makes_up_for_those_before() -> None:
    breaker = closed()
    for _ in range(MAX_FAILED - 1):
        assert breaker.wrote(False, 0.0)
    assert breaker.wrote(True, 0.0)
    fail(breaker, 0.0)
    assert breaker.state is BreakerState.OPEN
    assert f"{MAX_FAILED} writes in a row failed" in breaker.reason


def test_an_open_one_is_not_tried_before_its_back_off_is_over() -> None:
    breaker = closed()
    fail(breaker, 5.0)
    assert breaker.left_s(5.25) == BACK_OFF_S - 0.25
    assert not breaker.begin(5.25)
    assert breaker.begin(5.0 + BACK_OFF_S)
    assert breaker.left_s(5.25) == 0.0, "on trial"


def test_the_back_off_doubles_up_to_a_most_and_a_good_write_ends_that() -> None:
    breaker, now_s, waits = Breaker(), 0.0, []
    for _ in range(7):
        assert breaker.begin(now_s)
        breaker.tried("silent", now_s)
        waits.append(breaker.left_s(now_s))
        now_s += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, BACK_OFF_MAX_S, BACK_OFF_MAX_S]
    assert breaker.begin(now_s)
    breaker.tried(None, now_s)
    assert breaker.wrote(True, now_s)
    fail(breaker, now_s)
    assert breaker.left_s(now_s) == BACK_OFF_S


def test_a_trial_that_passes_does_not_make_up_for_the_writes_that_fail_after_it() -> None:
    """The known answer is small: it may pass where whole pages do not."""
    breaker = closed()
    fail(breaker, 0.0)
    assert breaker.begin(BACK_OFF_S)
    breaker.tried(None, BACK_OFF_S)
    fail(breaker, BACK_OFF_S)
    assert breaker.left_s(BACK_OFF_S) == 2 * BACK_OFF_S


def test_the_scale_multiplies_the_back_off() -> None:
    breaker = Breaker(scale=5.0)
    assert breaker.begin(0.0)
    breaker.tried("silent", 0.0)
    assert breaker.left_s(0.0) == 5 * BACK_OFF_S
