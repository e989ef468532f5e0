"""The book of open requests: what is sent to whom, and that every request is struck out exactly once."""

import asyncio
from collections.abc import Callable

import pytest

from router.errors import shutting_down
from router.placement import Pair
from router.requests import PEER_WAIT_S, UNREAD_CHARS, UNREAD_PIECES, Exchange, Requests, groups_of
from router.stream import Failed, Finished, Stream
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Cancel, Done, Token
from tandem.core.requests import Reason, Sampling, Work


class Clock:
    """Clock double: time moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "Timer":
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def move(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.when <= self.now and not timer.cancelled:
                timer.cancelled = True
                timer.callback()


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Letters:
    def push(self, token: int) -> str:
        return chr(token)

    def finish(self) -> str:
        return ""


def head(role: RoleName, name: str) -> Member:
    return Member(Group(role, name, (1,)), RankId(0), 1, 1, "h", "f", "m", "", "", "", Limits())


PAIR = Pair(head(RoleName.PREFILL, "p0"), head(RoleName.DECODE, "d0"))


class Desk:
    """A book whose messages are kept, with one request open in it."""

    def __init__(
        self, max_tokens: int = 100, stops: tuple[str, ...] = (), streaming: bool = True, timer_scale: float = 1.0
    ) -> None:
        self.clock = Clock()
        self.sent: list[tuple[str, object]] = []
        self.full: set[str] = set()
        self.book = Requests(self._send, self.clock, 600.0, timer_scale)
        self.room = Room(RequestId(7), 1)
        self.exchange = self.open(self.room, max_tokens, stops, streaming)

    def open(self, room: Room, max_tokens: int = 100, stops: tuple = (), streaming: bool = True) -> Exchange:
        work = Work(room, (1, 2), max_tokens, (256,), Sampling(), None)
        stream = Stream(work, groups_of(work, PAIR), 10**6, Letters(), stops)
        return self.book.open(work, PAIR, stream, deadline=700.0, streaming=streaming)

    def _send(self, group: str, message: object) -> bool:
        self.sent.append((group, message))
        return group not in self.full

    def token(self, group: str, index: int, token: int = 65) -> None:
        self.book.on_message(group, Token(self.room, index, token))

    def done(self, group: str, reason: Reason) -> None:
        self.book.on_message(group, Done(self.room, reason))

    def cancels(self) -> list[tuple[str, Reason]]:
        return [(group, message.reason) for group, message in self.sent if isinstance(message, Cancel)]

    def code(self) -> str | None:
        return self.exchange.end.error.code if isinstance(self.exchange.end, Failed) else None


def both(reason: Reason) -> list[tuple[str, Reason]]:
    return [("p0", reason), ("d0", reason)]


def test_the_work_goes_to_both_groups_each_with_its_peer():
    desk = Desk()
    assert [(group, message.work.peer, message.remaining_ms) for group, message in desk.sent] == [
        ("d0", "p0", 600_000),
        ("p0", "d0", 600_000),
    ]


def test_one_token_goes_to_prefill_alone():
    desk = Desk(max_tokens=1)
    assert [(group, message.work.peer) for group, message in desk.sent] == [("p0", None)]
    desk.token("p0", 0)
    assert (desk.exchange.end, desk.cancels(), len(desk.book)) == (Finished("length"), [], 0)


def test_a_good_end_tells_nobody_and_leaves_no_timer():
    desk = Desk(max_tokens=2)
    desk.token("p0", 0)
    desk.token("d0", 0)
    desk.token("d0", 1)
    assert (desk.exchange.take(), desk.exchange.end, desk.cancels()) == (["A", "A"], Finished("length"), [])
    desk.done("d0", Reason.LENGTH)
    assert all(timer.cancelled for timer in desk.clock.timers)
    assert len(desk.book) == 0


def test_a_stop_string_ends_the_room_on_both_sides():
    desk = Desk(stops=("A",))
    desk.token("p0", 0)
    assert (desk.exchange.end, desk.cancels()) == (Finished("stop", True), both(Reason.STOP_STRING))


@pytest.mark.parametrize("group", ["p0", "d0"])
def test_a_lost_group_ends_its_requests_and_no_others(group: str):
    desk = Desk()
    desk.book.on_lost("p9", "x")
    assert desk.exchange.end is None
    desk.book.on_lost(group, "it burnt")
    assert desk.code() == "group_lost"
    assert "it burnt" in desk.exchange.end.error.message
    assert desk.cancels() == both(Reason.GROUP_LOST)


def test_a_request_that_was_handed_over_needs_its_prefill_group_no_more():
    desk = Desk()
    desk.token("p0", 0)
    desk.token("d0", 0)
    desk.token("d0", 1)
    desk.book.on_lost("p0", "it burnt")
    assert desk.exchange.end is None
    desk.book.on_lost("d0", "it burnt too")
    assert desk.code() == "group_lost"


def test_a_request_without_a_decode_group_survives_its_loss():
    desk = Desk(max_tokens=1)
    desk.book.on_lost("d0", "x")
    assert desk.exchange.end is None


def test_the_deadline_needs_no_group():
    desk = Desk()
    desk.clock.move(599)
    assert desk.exchange.end is None
    desk.clock.move(1)
    assert (desk.code(), desk.cancels()) == ("deadline_exceeded", both(Reason.DEADLINE))


@pytest.mark.parametrize("timer_scale", [1, 5])
def test_peer_ended_is_bounded(timer_scale: float):
    desk = Desk(timer_scale=timer_scale)
    desk.done("d0", Reason.PEER_ENDED)
    desk.clock.move(PEER_WAIT_S * timer_scale - 0.1)
    assert desk.exchange.end is None
    desk.clock.move(0.2)
    assert (desk.code(), desk.cancels()) == ("group_lost", both(Reason.PEER_ENDED))


def test_peer_ended_takes_the_other_groups_reason():
    desk = Desk()
    desk.done("d0", Reason.PEER_ENDED)
    desk.done("p0", Reason.TRANSFER_FAILED)
    desk.clock.move(10)
    assert desk.code() == "kv_transfer_failed"
    assert desk.cancels() == both(Reason.PEER_ENDED), "told once"


def test_a_full_queue_is_an_answer():
    desk = Desk()
    desk.full.add("p0")
    other = desk.open(Room(RequestId(8), 1))
    assert isinstance(other.end, Failed)
    assert len(desk.book) == 1


def test_messages_of_strangers_are_not_heard():
    desk = Desk()
    desk.book.on_message("d9", Token(desk.room, 0, 65))
    desk.book.on_message("d0", Token(Room(RequestId(9), 1), 0, 65))
    desk.book.on_message("d0", Token(Room(desk.room.rid, 2), 0, 65))
    desk.book.on_message("d0", Done(Room(desk.room.rid, 2), Reason.GROUP_LOST))
    assert (desk.exchange.take(), desk.exchange.end) == ([], None)


def test_a_client_that_goes_is_told_to_both_once():
    desk = Desk()
    desk.exchange.abandon()
    desk.exchange.abandon()
    assert (desk.code(), desk.cancels()) == ("client_gone", both(Reason.CLIENT_GONE))


def test_a_router_that_goes_ends_everything():
    desk = Desk()
    other = desk.open(Room(RequestId(8), 1))
    desk.book.fail_all(shutting_down())
    assert (desk.code(), other.end.error.code, len(desk.book)) == ("shutting_down", "shutting_down", 0)


def test_unread_text_is_joined_and_bounded():
    desk = Desk(max_tokens=10**6)
    for index in range(UNREAD_CHARS):
        desk.token("d0", index)
    assert desk.exchange.end is None
    assert len(desk.exchange._pieces) == UNREAD_PIECES
    desk.token("d0", UNREAD_CHARS)
    assert (desk.code(), desk.cancels()) == ("slow_reader", both(Reason.CLIENT_GONE))


def test_text_that_is_sent_as_one_body_is_bounded_by_max_tokens_alone():
    desk = Desk(max_tokens=UNREAD_CHARS + 10, streaming=False)
    for index in range(UNREAD_CHARS + 10):
        desk.token("d0", index)
    assert desk.exchange.end == Finished("length")


def test_a_waiter_wakes_for_text_for_the_end_and_for_nothing():
    async def story() -> None:
        desk = Desk(max_tokens=2)
        waiting = asyncio.create_task(desk.exchange.news(30))
        await asyncio.sleep(0)
        desk.token("p0", 0)
        await waiting
        assert desk.exchange.take() == ["A"]
        await desk.exchange.news(0.001)
        assert (desk.exchange.take(), desk.exchange.end) == ([], None)
        ended = asyncio.create_task(desk.exchange.ended())
        await asyncio.sleep(0)
        desk.token("d0", 1)
        await ended
        await desk.exchange.news(30)
        assert (desk.exchange.take(), desk.exchange.end) == (["A"], Finished("length"))

    asyncio.run(story())
