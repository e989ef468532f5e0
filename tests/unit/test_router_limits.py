"""What one tenant may use: buckets that fill with time, and what they are charged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ApiError
from router.limits import Bucket, Quota, Usage, Usages


def refused(usage: Usage, now: float) -> ApiError:
    with pytest.raises(ApiError) as told:
        usage.begin(now)
    assert (told.value.status, told.value.code) == (429, "tenant_limit")
    return told.value


def test_a_bucket_holds_a_minute_and_fills_with_time():
    bucket = Bucket(60, 0.0)
    bucket.take(0.0, 60)
    assert bucket.wait_s(0.0, 1) == pytest.approx(1.0)
    assert bucket.wait_s(0.5, 1) == pytest.approx(0.5)
    assert bucket.wait_s(1.0, 1) == 0.0
    assert bucket.wait_s(1000.0, 60) == 0.0


def test_a_bucket_may_be_in_debt_and_says_for_how_long():
    bucket = Bucket(60, 0.0)
    bucket.take(0.0, 180)
    assert bucket.wait_s(0.0, 1) == pytest.approx(121.0)


def test_more_than_a_bucket_can_ever_hold_waits_until_it_is_full():
    bucket = Bucket(60, 0.0)
    bucket.take(0.0, 30)
    assert bucket.wait_s(0.0, 10**6) == pytest.approx(30.0)


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 100)), max_size=50))
def test_nobody_gets_more_than_a_full_bucket_and_what_has_flown_in(per_minute: int, steps: list[tuple[float, int]]):
    bucket, now, taken = Bucket(per_minute, 0.0), 0.0, 0
    for later, amount in steps:
        now += later
        if amount <= per_minute and not bucket.wait_s(now, amount):
            bucket.take(now, amount)
            taken += amount
    assert taken <= per_minute * (1 + now / 60) + 1e-6


def test_without_limits_there_are_none():
    usage = Usage(Quota(), 0.0)
    for _ in range(1000):
        usage.begin(0.0)
    usage.spend(0.0, 10**9)
    usage.begin(0.0)
    assert usage.open == 1001


def test_requests_at_once_are_counted_down_again():
    usage = Usage(Quota(concurrent=2), 0.0)
    usage.begin(0.0)
    usage.begin(0.0)
    assert "2 requests at once" in refused(usage, 0.0).message
    usage.end()
    usage.begin(0.0)


def test_a_request_that_is_refused_costs_nothing():
    usage = Usage(Quota(requests_per_minute=1), 0.0)
    usage.begin(0.0)
    waits = [refused(usage, 0.0).retry_after_s for _ in range(10)]
    assert waits == [60] * 10
    assert usage.open == 1


def test_tokens_are_charged_afterwards_and_refuse_what_comes_then():
    usage = Usage(Quota(tokens_per_minute=100), 0.0)
    usage.begin(0.0)
    usage.spend(0.0, 150)
    assert refused(usage, 0.0).retry_after_s == 31
    usage.begin(31.0)


def test_other_limits_keep_what_was_used():
    usage = Usage(Quota(requests_per_minute=10), 0.0)
    for _ in range(10):
        usage.begin(0.0)
    usage.limit(Quota(requests_per_minute=5, concurrent=20), 0.0)
    refused(usage, 0.0)
    usage.begin(12.0)
    usage.limit(Quota(), 12.0)
    usage.begin(12.0)


def test_a_tenant_that_is_gone_is_forgotten_once_nothing_of_it_is_open():
    usages = Usages()
    usage = usages.of("a", Quota(concurrent=1), 0.0)
    usage.begin(0.0)
    usages.keep(set())
    assert usages.of("a", Quota(concurrent=1), 0.0) is usage
    usage.end()
    usages.keep(set())
    assert usages.of("a", Quota(concurrent=1), 0.0) is not usage
