"""The book of open requests: what is sent to whom, and that every request is struck out exactly once."""

import pytest
from desk import ALONE, OTHER_PAIR, Desk, both

from router.errors import shutting_down
from router.exchange import LOGPROB_CHARS, UNREAD_PIECES
from router.reader import UNREAD_CHARS
from router.requests import EVICTIONS_MAX, PEER_WAIT_S
from router.stream import Failed, Finished
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cancel, Done, Evicted, Portion, Token
from tandem.core.requests import Logprobs, Reason, Sampling


def test_the_work_goes_to_both_groups_each_with_its_peer():
    desk = Desk()
    assert [(group, message.work.peer, message.remaining_ms) for group, message in desk.sent] == [
        ("d0", "p0", 600_000),
        ("p0", "d0", 600_000),
    ]


def test_only_what_nobody_looks_at_before_its_end_is_told_whole():
    assert [submit.whole for _, submit in Desk(streaming=False).submits()] == [True, True]
    assert [submit.whole for _, submit in Desk(streaming=True).submits()] == [False, False]
    assert [submit.whole for _, submit in Desk(streaming=False, stops=("x",)).submits()] == [False, False]
    assert [submit.whole for _, submit in Desk(streaming=False, sampling=Sampling(logprobs=0)).submits()] == [
        False,
        False,
    ]


def test_an_answer_that_comes_in_portions_ends_with_the_last_of_them():
    desk = Desk(max_tokens=4, streaming=False)
    desk.token("p0", 0)
    room = desk.exchange.attempt.room
    desk.book.on_message("d0", Portion(room, 1, (98, 99)))
    assert desk.exchange.end is None
    desk.book.on_message("d0", Portion(room, 3, (100,)))
    assert (desk.exchange.end, len(desk.book)) == (Finished("length"), 0)
    assert "".join(desk.exchange.take())[1:] == "bcd"


def test_a_request_told_whole_goes_on_behind_the_portions_that_it_has():
    desk = Desk(max_tokens=9, streaming=False)
    desk.token("p0", 0)
    desk.book.on_message("d0", Portion(desk.exchange.attempt.room, 1, (98, 99)))
    desk.route = OTHER_PAIR
    desk.book.on_lost("d0", "it burnt")
    again = [submit for group, submit in desk.submits() if group == "d1"]
    assert [(submit.whole, submit.work.generated, submit.work.prompt[-2:]) for submit in again] == [(True, 3, (98, 99))]


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
def test_a_lost_group_ends_its_requests_if_there_is_no_other(group: str):
    desk = Desk()
    desk.book.on_lost("p9", "x")
    assert desk.exchange.end is None
    desk.route = None
    desk.book.on_lost(group, "it burnt")
    assert desk.code() == "group_lost"
    assert "it burnt" in desk.exchange.end.error.message
    assert "nobody is there" in desk.exchange.end.error.message
    assert desk.exchange.end.error.status == 502
    assert desk.cancels() == both(Reason.PEER_ENDED)
    assert (desk.book.migrated, len(desk.book)) == (0, 0)


def test_a_request_that_was_handed_over_needs_its_prefill_group_no_more():
    desk = Desk()
    desk.token("p0", 0)
    desk.token("d0", 0)
    desk.token("d0", 1)
    desk.book.on_lost("p0", "it burnt")
    assert (desk.exchange.end, len(desk.submits())) == (None, 2)
    desk.route = OTHER_PAIR
    desk.book.on_lost("d0", "it burnt too")
    assert [group for group, _ in desk.submits()[2:]] == ["d1", "p1"]
    assert desk.exchange.losses.count == 1


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
    desk.route = None
    desk.clock.move(0.2)
    assert (desk.code(), desk.cancels()) == ("group_lost", both(Reason.PEER_ENDED))


def test_peer_ended_takes_the_other_groups_reason():
    desk = Desk()
    desk.done("d0", Reason.PEER_ENDED)
    desk.done("p0", Reason.TOO_LARGE)
    desk.clock.move(10)
    assert desk.code() == "context_length_exceeded"
    assert desk.cancels() == both(Reason.PEER_ENDED), "told once"


def test_a_full_queue_is_an_answer():
    desk = Desk()
    desk.full.add("p0")
    other = desk.open(Room(RequestId(8), 1))
    assert isinstance(other.end, Failed)
    assert other.end.error.code == "group_lost"
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


def scored(desk: Desk, index: int) -> None:
    desk.book.on_message("d0", Token(desk.room, index, 65, Logprobs(0.0, ((1, 0.0),) * 20)))


def test_log_probabilities_that_nobody_reads_count_too():
    desk = Desk(max_tokens=10**6, sampling=Sampling(logprobs=20))
    each = 1 + 21 * LOGPROB_CHARS
    for index in range(UNREAD_CHARS // each):
        scored(desk, index)
    assert desk.exchange.end is None
    scored(desk, UNREAD_CHARS // each)
    assert desk.code() == "slow_reader"


def test_one_body_holds_only_so_many_log_probabilities(monkeypatch):
    monkeypatch.setattr("router.reader.BODY_CHARS", 10_000)
    desk = Desk(max_tokens=10**6, streaming=False, sampling=Sampling(logprobs=20))
    for index in range(5):
        scored(desk, index)
        desk.exchange.reader.take()
    assert desk.exchange.end is None
    scored(desk, 5)
    assert (desk.code(), desk.exchange.end.error.status) == ("answer_too_large", 400)


def test_text_that_is_sent_as_one_body_is_bounded_by_max_tokens_alone():
    desk = Desk(max_tokens=UNREAD_CHARS + 10, streaming=False)
    for index in range(UNREAD_CHARS + 10):
        desk.token("d0", index)
    assert desk.exchange.end == Finished("length")


def test_a_stream_is_told_of_text_and_of_the_end_and_of_nothing_else():
    desk = Desk(max_tokens=2)
    reader, told = desk.exchange.reader, []
    reader.listen(lambda: told.append((reader.take(), desk.exchange.take())))
    desk.token("p0", 0)
    desk.token("d0", 0)
    assert told == [([0], ["A"])]
    desk.token("d0", 1)
    assert told == [([0], ["A"]), ([0], ["A"]), ([0], [])]
    assert desk.exchange.end == Finished("length")


def test_an_answer_that_is_not_streamed_is_told_of_the_end_only():
    desk = Desk(max_tokens=2, streaming=False)
    reader, told = desk.exchange.reader, []
    reader.listen(lambda: told.append((reader.take(), desk.exchange.take())))
    desk.token("p0", 0)
    assert told == []
    desk.token("d0", 1)
    assert told == [([0], ["A", "A"])]


def test_who_listens_late_is_told_of_what_there_is():
    desk = Desk()
    desk.token("p0", 0)
    told = []
    desk.exchange.reader.listen(lambda: told.append("news"))
    assert told == ["news"]


# a group gives the pages of a request up


def test_an_evicted_request_is_submitted_anew_with_the_tokens_it_has():
    desk = Desk()
    desk.token("p0", 0)
    desk.token("d0", 1, 66)
    desk.clock.move(100)
    desk.sent.clear()
    desk.evicted("d0")
    again = [
        (group, submit.work.room.attempt, submit.work.prompt, submit.work.max_tokens, submit.remaining_ms)
        for group, submit in desk.submits()
    ]
    assert again == [(group, 2, (1, 2, 65, 66), 98, 500_000) for group in ("d0", "p0")]
    assert {submit.work.sampling for _, submit in desk.submits()} == {Sampling()}
    assert [group for group, _ in desk.cancels()] == ["p0", "d0"], "whoever still has the first attempt lets it go"
    assert all(message.room.attempt == 1 for _, message in desk.sent if isinstance(message, Cancel))


def test_its_client_sees_neither_a_gap_nor_a_double():
    desk = Desk(max_tokens=4)
    desk.token("p0", 0, 65)
    desk.token("d0", 1, 66)
    desk.evicted("d0")
    desk.token("d0", 2, 88)
    room = desk.exchange.attempt.room
    for group, index, token in (("p0", 0, 67), ("d0", 0, 67), ("d0", 1, 68)):
        desk.book.on_message(group, Token(room, index, token))
    assert (desk.exchange.take(), desk.exchange.end) == (["A", "B", "C", "D"], Finished("length"))
    assert len(desk.book) == 0


def test_it_may_go_on_elsewhere():
    desk = Desk()
    desk.token("p0", 0)
    desk.route = OTHER_PAIR
    desk.evicted("d0")
    assert [group for group, _ in desk.submits()] == ["d0", "p0", "d1", "p1"]
    desk.book.on_lost("d0", "it burnt")
    assert desk.exchange.losses.count == 0, "it works on this one no more"
    desk.book.on_lost("p1", "it burnt too")
    assert desk.exchange.losses.count == 1


def test_with_one_token_left_prefill_does_it_alone():
    desk = Desk(max_tokens=2)
    desk.token("p0", 0)
    desk.evicted("d0")
    group, submit = desk.submits()[-1]
    assert (group, submit.work.max_tokens, submit.work.peer) == ("p0", 1, None)
    desk.book.on_message("p0", Token(desk.exchange.attempt.room, 0, 66))
    assert (desk.exchange.take(), desk.exchange.end) == (["A", "B"], Finished("length"))


def test_an_eviction_of_another_attempt_is_not_heard():
    desk = Desk()
    desk.evicted("d0")
    desk.book.on_message("d0", Evicted(desk.room))
    desk.book.on_message("d9", Evicted(desk.exchange.attempt.room))
    assert desk.exchange.attempt.room.attempt == 2


def test_evictions_are_bounded():
    desk = Desk()
    for _ in range(EVICTIONS_MAX):
        desk.evicted("d0")
    assert (desk.exchange.attempt.room.attempt, desk.exchange.end) == (1 + EVICTIONS_MAX, None)
    desk.evicted("d0")
    assert desk.code() == "overloaded"
    assert desk.exchange.end.error.status == 503
    assert len(desk.book) == 0


@pytest.mark.parametrize(("reason", "retries"), [(Reason.TRANSFER_FAILED, 2), (Reason.KV_CHECKSUM, 1)])
def test_a_hand_over_that_failed_is_tried_again_so_often(reason: Reason, retries: int):
    desk = Desk()
    desk.token("p0", 0)
    desk.done("p0", Reason.PEER_ENDED)
    for number in range(retries):
        desk.room = desk.exchange.attempt.room
        desk.done("d0", reason)
        assert [submit.work.prompt for _, submit in desk.submits()[2 + 2 * number :]] == [(1, 2, 65)] * 2
        assert desk.exchange.end is None
    desk.room = desk.exchange.attempt.room
    desk.done("d0", reason)
    assert desk.exchange.end.error.status == 502


def test_failures_of_one_kind_leave_the_tries_of_another():
    desk = Desk()
    for reason in (Reason.TRANSFER_FAILED, Reason.KV_CHECKSUM):
        desk.room = desk.exchange.attempt.room
        desk.done("d0", reason)
        assert desk.exchange.end is None
    desk.room = desk.exchange.attempt.room
    desk.done("d0", Reason.KV_CHECKSUM)
    assert desk.code() == "kv_checksum"


def test_each_attempt_waits_for_its_own_reason():
    """The wait of an earlier one is over sooner, and says nothing about this one."""
    desk = Desk()
    desk.done("p0", Reason.PEER_ENDED)
    desk.clock.move(PEER_WAIT_S - 0.1)
    desk.done("d0", Reason.TRANSFER_FAILED)
    desk.room = desk.exchange.attempt.room
    desk.done("p0", Reason.PEER_ENDED)
    desk.clock.move(0.2)
    assert desk.exchange.end is None
    desk.done("d0", Reason.TRANSFER_FAILED)
    assert (desk.exchange.end, desk.exchange.attempt.room.attempt) == (None, 3)


def test_each_failure_of_an_attempt_is_heard_once():
    desk = Desk()
    desk.done("d0", Reason.TRANSFER_FAILED)
    desk.done("p0", Reason.TRANSFER_FAILED)
    assert (desk.exchange.end, desk.exchange.attempt.room.attempt) == (None, 2)


def test_an_evicted_request_that_can_go_nowhere_says_why():
    desk = Desk()
    desk.route = None
    desk.evicted("d0")
    assert (desk.code(), len(desk.book)) == ("no_decode", 0)


def test_it_keeps_its_age_over_all_attempts():
    desk = Desk()
    for _ in range(2):
        desk.clock.move(100)
        desk.evicted("d0")
    ages_ms = [(group, submit.work.age_ms) for group, submit in desk.submits()]
    assert ages_ms == [(group, age_ms) for age_ms in (0, 100_000, 200_000) for group in ("d0", "p0")]


def test_the_deadline_of_an_evicted_request_stays():
    desk = Desk()
    desk.clock.move(599)
    desk.evicted("d0")
    assert desk.submits()[-1][1].remaining_ms == 1_000
    desk.clock.move(1)
    room = desk.exchange.attempt.room
    assert desk.code() == "deadline_exceeded"
    assert desk.sent[-2:] == [(group, Cancel(room, Reason.DEADLINE)) for group in ("p0", "d0")]


# one group does all


def test_a_colocated_group_gets_the_work_alone():
    desk = Desk(max_tokens=3, route=ALONE)
    assert [(group, submit.work.peer) for group, submit in desk.submits()] == [("c0", None)]
    for index in range(3):
        desk.token("c0", index)
    assert (desk.exchange.end, desk.cancels()) == (Finished("length"), [])


def test_a_colocated_group_is_needed_to_the_end():
    desk = Desk(route=ALONE)
    desk.token("c0", 0)
    desk.token("c0", 1)
    desk.route = None
    desk.book.on_lost("c0", "it burnt")
    assert (desk.code(), desk.cancels()) == ("group_lost", [("c0", Reason.PEER_ENDED)])


def test_a_colocated_group_may_be_told_to_compute_anew():
    desk = Desk(route=ALONE)
    desk.token("c0", 0)
    desk.evicted("c0")
    assert desk.submits()[-1][1].work.prompt == (1, 2, 65)
