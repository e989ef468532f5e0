"""Retries are a tenth of the traffic, but a few are always allowed, and they do not come all at once."""

from router.budget import FLOOR, WINDOW_S, RetryBudget, unlimited


def spent(budget: RetryBudget, now: float, wanted: int = 1000) -> int:
    return sum(budget.spend(now) for _ in range(wanted))


def test_little_traffic_has_a_floor():
    budget = RetryBudget(lambda: 0.5)
    budget.on_request(0.0)
    assert spent(budget, 0.0) == FLOOR
    assert budget.refused == 1000 - FLOOR


def test_much_traffic_has_a_tenth():
    budget = RetryBudget(lambda: 0.5)
    for _ in range(1000):
        budget.on_request(0.0)
    assert spent(budget, 0.0) == 100


def test_old_traffic_counts_for_one_more_window_and_then_no_more():
    budget = RetryBudget(lambda: 0.5)
    for _ in range(1000):
        budget.on_request(0.0)
    assert spent(budget, WINDOW_S) == 100
    assert spent(budget, 3 * WINDOW_S) == FLOOR


def test_old_retries_are_forgotten_too():
    budget = RetryBudget(lambda: 0.5)
    assert spent(budget, 0.0) == FLOOR
    assert spent(budget, WINDOW_S) == 0
    assert spent(budget, 2 * WINDOW_S) == FLOOR


def test_a_retry_waits_for_a_time_that_is_drawn_and_doubles():
    draws = iter((0.0, 0.5, 0.75))
    budget = RetryBudget(lambda: next(draws), delay_s=1.0)
    assert [budget.delay_s(tries) for tries in range(3)] == [0.5, 2.0, 5.0]


def test_without_limits_everything_goes_at_once():
    budget = unlimited()
    assert spent(budget, 0.0) == 1000
    assert budget.delay_s(5) == 0
