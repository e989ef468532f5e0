"""The queue in front of placement: whatever comes and goes, nobody is lost, and who is next is fair."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.queue import PRIORITY_S, Queue, Ticket, Wish, cost

SOON = 1e9
"""A deadline that no test reaches."""


def always(ticket: Ticket) -> bool:
    return True


def never(ticket: Ticket) -> bool:
    return False


def join(queue: Queue, now: float = 0.0, tenant: str = "", priority: int = 0, deadline: float = SOON) -> Ticket:
    """One that finds a place."""
    ticket, out = queue.join(tenant, Wish(10, priority=priority), now, deadline)
    assert out is None
    return ticket


def drain(queue: Queue, now: float = 0.0) -> list[Ticket]:
    taken = []
    while (ticket := queue.take(now, always)) is not None:
        taken.append(ticket)
    return taken


def test_the_first_to_come_is_the_first_to_go():
    queue = Queue(10, 60.0)
    tickets = [join(queue, now) for now in (0.0, 1.0, 1.0, 2.0)]
    assert drain(queue, 3.0) == tickets


def test_nobody_goes_where_there_is_no_room_and_no_one_overtakes_the_next():
    queue = Queue(10, 60.0)
    large, _ = queue.join("", Wish(1000), 0.0, SOON)
    small = join(queue, 1.0)
    assert queue.take(2.0, lambda ticket: ticket.wish.tokens < 100) is None
    assert len(queue) == 2
    assert drain(queue, 3.0) == [large, small]


def test_priority_goes_first_and_waiting_makes_up_for_it():
    queue = Queue(10, 600.0)
    old = join(queue, 0.0, priority=-1)
    urgent = join(queue, 2 * PRIORITY_S - 0.1, priority=1)
    late = join(queue, 2 * PRIORITY_S + 0.1, priority=1)
    assert drain(queue, 3 * PRIORITY_S) == [urgent, old, late]


def test_tenants_take_turns_however_much_one_of_them_sends():
    queue = Queue(100, 60.0)
    for _ in range(50):
        join(queue, tenant="loud")
    for _ in range(3):
        join(queue, 1.0, tenant="quiet")
    assert [ticket.tenant for ticket in drain(queue, 2.0)][:6].count("quiet") == 3


def test_a_tenant_with_large_requests_gets_fewer_turns():
    queue = Queue(100, 60.0)
    large, small = Wish(4 * cost(Wish(0)) - cost(Wish(0))), Wish(0)
    for _ in range(20):
        queue.join("large", large, 0.0, SOON)
        queue.join("small", small, 0.0, SOON)
    first = [ticket.tenant for ticket in drain(queue)][:15]
    assert first.count("small") == 4 * first.count("large")


def test_nobody_saves_up_turns_by_staying_away():
    queue = Queue(100, 60.0)
    for _ in range(20):
        join(queue, tenant="busy")
    for _ in range(10):
        queue.take(0.0, always)
    for _ in range(10):
        join(queue, 1.0, tenant="new")
    assert [ticket.tenant for ticket in drain(queue, 2.0)][:10].count("busy") == 5


def test_one_more_than_it_holds_is_turned_away():
    queue = Queue(2, 60.0)
    tickets = [join(queue), join(queue)]
    ticket, out = queue.join("", Wish(10), 1.0, SOON)
    assert out is ticket
    assert drain(queue, 2.0) == tickets


def test_a_queue_without_places_turns_everybody_away():
    ticket, out = Queue(0, 60.0).join("", Wish(10), 0.0, SOON)
    assert out is ticket


def test_in_a_full_queue_the_last_of_who_has_most_makes_room():
    queue = Queue(3, 60.0)
    loud = [join(queue, now, tenant="loud") for now in (0.0, 1.0, 2.0)]
    ticket, out = queue.join("quiet", Wish(10), 3.0, SOON)
    assert out is loud[-1]
    assert ticket in drain(queue, 4.0)


def test_in_a_full_queue_a_request_of_higher_priority_takes_the_place_of_the_last_one():
    queue = Queue(2, 60.0)
    first, last = join(queue, 0.0), join(queue, 1.0)
    ticket, out = queue.join("", Wish(10, priority=5), 2.0, SOON)
    assert out is last
    assert drain(queue, 3.0) == [ticket, first]


def test_what_has_begun_in_part_makes_room_for_nobody_and_waits_as_long_as_its_request():
    queue = Queue(1, 5.0)
    rest, out = queue.join("", Wish(10, goes_on=True), 0.0, 600.0)
    assert (out, rest.deadline) == (None, 600.0)
    new, out = queue.join("", Wish(10), 1.0, SOON)
    assert out is new
    another, out = queue.join("", Wish(10, goes_on=True), 1.0, 600.0)
    assert (out, len(queue)) == (None, 2), "as many requests have begun"
    assert queue.clear(2.0, going_on=False) == []
    assert queue.clear(2.0) == [rest, another]


def test_who_waits_too_long_is_told_so_and_so_is_who_has_no_time():
    queue = Queue(10, 5.0)
    patient, hasty = join(queue, 0.0), join(queue, 0.0, deadline=2.0)
    assert queue.expire(1.9) == []
    assert queue.expire(2.0) == [hasty]
    assert queue.expire(5.0) == [patient]
    assert len(queue) == 0


def test_who_leaves_is_not_served():
    queue = Queue(10, 60.0)
    ticket, other = join(queue), join(queue)
    assert queue.leave(ticket, 1.0)
    assert not queue.leave(ticket, 1.0)
    assert drain(queue, 2.0) == [other]


def test_a_router_that_ends_sends_everybody_away():
    queue = Queue(10, 60.0)
    tickets = [join(queue), join(queue, tenant="a")]
    assert sorted(queue.clear(1.0)) == sorted(tickets)
    assert drain(queue) == []


def served(queue: Queue, per_s: float, seconds: float) -> float:
    """Serve one and let one more come, again and again; returns the time at the end."""
    now = 0.0
    while now < seconds:
        now += 1 / per_s
        queue.take(now, always)
        join(queue, now)
    return now


@pytest.mark.parametrize(("waiting", "per_s"), [(20, 2.0), (100, 10.0), (30, 1.0)])
def test_when_to_come_again_follows_from_how_fast_the_queue_is_served(waiting: int, per_s: float):
    queue = Queue(1000, 600.0)
    for _ in range(waiting):
        join(queue)
    now = served(queue, per_s, 30.0)
    assert queue.retry_after_s(now) == pytest.approx(waiting / per_s, rel=0.15)


def test_where_nothing_is_known_of_its_speed_it_is_soon():
    queue = Queue(10, 60.0)
    join(queue)
    assert queue.retry_after_s(0.0) == 1.0


def test_who_would_wait_longer_than_the_timeout_is_turned_away_at_once():
    queue = Queue(1000, 10.0)
    for _ in range(15):
        join(queue)
    now = served(queue, 2.0, 20.0)
    outs = [queue.join("", Wish(10), now, SOON) for _ in range(20)]
    assert [out is ticket for ticket, out in outs][-5:] == [True] * 5
    assert 18 <= len(queue) <= 22
    assert join(queue, now, tenant="another")
    assert join(queue, now, priority=50)


def test_an_idle_time_is_no_slow_one():
    queue = Queue(1000, 10.0)
    for now in range(10):
        join(queue, now * 100.0)
        assert queue.take(now * 100.0 + 1.0, always) is not None
    for _ in range(50):
        join(queue, 1000.0)


STEPS = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("abc"), st.integers(-100, 100), st.floats(0.1, 50)),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.floats(0, 20)),
    st.tuples(st.just("clear")),
)


@settings(max_examples=200)
@given(st.integers(0, 5), st.lists(STEPS, max_size=60))
def test_whatever_happens_each_one_leaves_exactly_once_and_the_queue_is_bounded(size: int, steps: list):
    queue, now = Queue(size, 30.0), 0.0
    inside: list[Ticket] = []

    def gone(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            inside.remove(ticket)  # raises for one that has left before

    for step in steps:
        match step:
            case ("join", tenant, priority, seconds):
                ticket, out = queue.join(tenant, Wish(10, 1, priority), now, now + seconds)
                inside.append(ticket)
                gone([out] if out is not None else [])
            case ("take", room):
                taken = queue.take(now, always if room else never)
                assert (taken is not None) == (room and bool(inside))
                gone([taken] if taken is not None else [])
            case ("leave", index) if index < len(inside):
                assert queue.leave(inside[index], now)
                del inside[index]
            case ("wait", seconds):
                now += seconds
                gone(queue.expire(now))
                assert all(ticket.deadline > now for ticket in inside)
            case ("clear",):
                gone(queue.clear(now))
                assert not inside
        assert len(queue) == len(inside) <= size
