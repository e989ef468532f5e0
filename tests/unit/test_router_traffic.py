"""How full groups are: what they say of themselves, and what was sent to them since."""

import pytest

from router.placement import Route
from router.queue import Wish
from router.traffic import LINE_ROUNDS, WAITING_MAX, Traffic
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Cached, Done, Evicted, Load, Token
from tandem.core.requests import Reason, Sampling, Work

LIMITS = Limits(page_size=4, num_pages=100, max_prefill_tokens=8, chunked_prefill_size=8, max_rooms=20)


def head(role: RoleName, name: str) -> Member:
    return Member(Group(role, name, (1,)), RankId(0), 1, 1, "h", "f", "m", "", "", "", LIMITS)


PREFILL, DECODE = head(RoleName.PREFILL, "p0"), head(RoleName.DECODE, "d0")
COLOCATED = head(RoleName.COLOCATED, "c0")
PAIR, ALONE = Route((PREFILL, DECODE)), Route((COLOCATED,))
SMALL = Wish(4)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


def send(traffic: Traffic, number: int, tokens: int = 4, route: Route = PAIR) -> None:
    work = Work(room(number), (1,) * tokens, 10, (), Sampling(), None)
    for each in route.heads:
        traffic.on_submit(each, Submit(work, 1000))


def load(traffic: Traffic, member: Member, waiting: int = 0, running: int = 0, free_pages: int = 100) -> None:
    assert traffic.on_message(member, Load(member.group.name, waiting, running, free_pages))


@pytest.fixture
def traffic() -> Traffic:
    """All groups are heard, and empty."""
    made = Traffic()
    for member in (PREFILL, DECODE, COLOCATED):
        load(made, member)
    return made


def fill_line(traffic: Traffic, route: Route = PAIR) -> int:
    """So many requests until the line is full."""
    for number in range(1, 100):
        if not traffic.has_room(route, SMALL):
            return number - 1
        send(traffic, number, route=route)
    raise AssertionError("the line is never full")


@pytest.mark.parametrize("route", [PAIR, ALONE])
def test_prompts_in_line_are_bounded_and_a_first_token_makes_room(traffic: Traffic, route: Route):
    count = fill_line(traffic, route)
    assert count == LINE_ROUNDS
    first = route.heads[0]
    assert traffic.on_message(first, Token(room(1), 0, 65))
    assert traffic.has_room(route, SMALL)


def test_what_decode_repeats_makes_no_room_at_prefill(traffic: Traffic):
    fill_line(traffic)
    traffic.on_message(DECODE, Token(room(1), 0, 65))
    assert not traffic.has_room(PAIR, SMALL)


def test_short_prompts_share_ticks_so_that_more_of_them_may_be_in_line():
    traffic = Traffic()
    load(traffic, PREFILL)
    load(traffic, DECODE)
    for number in range(1, 17):
        assert traffic.has_room(PAIR, Wish(1))
        send(traffic, number, tokens=1)
    assert not traffic.has_room(PAIR, Wish(1))


@pytest.mark.parametrize("end", [Done(room(1), Reason.LENGTH), Evicted(room(1))])
def test_whatever_ends_a_request_makes_room(traffic: Traffic, end):
    fill_line(traffic)
    assert traffic.on_message(PREFILL, end)
    assert not traffic.on_message(PREFILL, end), "it is known"
    assert traffic.has_room(PAIR, SMALL)


def test_a_cancel_makes_room_and_so_does_a_group_that_has_started_over(traffic: Traffic):
    count = fill_line(traffic)
    traffic.on_end("p0", room(1))
    assert traffic.has_room(PAIR, SMALL)
    send(traffic, count + 1)
    assert not traffic.has_room(PAIR, SMALL)
    traffic.forget("p0")
    assert traffic.has_room(PAIR, SMALL)


def test_pages_that_were_asked_for_since_the_last_word_are_counted(traffic: Traffic):
    load(traffic, DECODE, running=1, free_pages=10)
    assert traffic.has_room(PAIR, Wish(39))
    assert not traffic.has_room(PAIR, Wish(40))
    send(traffic, 1, tokens=20)
    assert traffic.has_room(PAIR, Wish(15))
    assert not traffic.has_room(PAIR, Wish(16))
    load(traffic, DECODE, running=2, free_pages=10)
    assert traffic.has_room(PAIR, Wish(39))


def test_pages_of_a_request_that_has_ended_are_free(traffic: Traffic):
    send(traffic, 1, tokens=39)
    load(traffic, DECODE, running=1, free_pages=0)
    assert not traffic.has_room(PAIR, SMALL)
    traffic.on_message(DECODE, Done(room(1), Reason.LENGTH))
    assert traffic.has_room(PAIR, SMALL)


def test_a_group_with_nothing_to_do_gets_whatever_there_is(traffic: Traffic):
    load(traffic, DECODE, free_pages=0)
    assert traffic.has_room(PAIR, Wish(10**6))


def test_requests_that_wait_for_pages_at_decode_keep_others_away(traffic: Traffic):
    load(traffic, DECODE, waiting=WAITING_MAX - 1, running=1)
    assert traffic.has_room(PAIR, SMALL)
    load(traffic, DECODE, waiting=WAITING_MAX, running=1)
    assert not traffic.has_room(PAIR, SMALL)


def test_what_another_router_has_in_line_counts(traffic: Traffic):
    load(traffic, PREFILL, waiting=LINE_ROUNDS, running=1)
    assert not traffic.has_room(PAIR, SMALL)


def test_rooms_are_bounded_as_the_group_bounds_them(traffic: Traffic):
    for number in range(1, 20):
        send(traffic, number, tokens=1)
        traffic.on_message(PREFILL, Token(room(number), 0, 65))
    assert traffic.has_room(PAIR, Wish(1))
    assert not traffic.has_room(PAIR, Wish(2, choices=2))


def test_what_is_held_in_a_cache_changes_nothing(traffic: Traffic):
    assert not traffic.on_message(PREFILL, Cached(0, 1, (), ()))


def test_a_group_that_was_never_heard_is_not_full():
    assert Traffic().has_room(PAIR, Wish(10**6))
    assert not Traffic().on_message(None, Token(room(1), 0, 65))
