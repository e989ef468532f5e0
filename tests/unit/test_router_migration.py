"""A request that loses a group goes on elsewhere: with what it has, within bounds, and never to kill a third one."""

import pytest
from desk import ALONE, OTHER_PAIR, PAIR, Desk, both, head

from router.errors import stalled
from router.placement import Route
from router.requests import LOSSES_MAX
from router.stream import Finished
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cancel, Done, Token
from tandem.core.requests import Reason, Sampling


def pair(prefill: str, decode: str) -> Route:
    return Route((head(RoleName.PREFILL, prefill), head(RoleName.DECODE, decode)))


THIRD_PAIR = pair("p2", "d2")


def lose(desk: Desk, group: str, to: Route | None, *, crashed: bool = True) -> None:
    """The group is lost, and `to` is where requests go from now on."""
    desk.route = to
    desk.book.on_lost(group, "it burnt", crashed=crashed)


def say(desk: Desk, group: str, text: str, first: int = 0) -> None:
    """Tokens of the current attempt, from its token `first` on."""
    for index, letter in enumerate(text, first):
        desk.book.on_message(group, Token(desk.exchange.attempt.room, index, ord(letter)))


def submitted(desk: Desk) -> list[tuple[str, int, str, int]]:
    """Who got which attempt, with what of the answer in its prompt (1, 2), to generate how many more."""
    return [
        (group, s.work.room.attempt, "".join(map(chr, s.work.prompt[2:])), s.work.max_tokens)
        for group, s in desk.submits()
    ]


# where it goes on


@pytest.mark.parametrize("group", ["p0", "d0"])
def test_before_the_first_byte_it_starts_again_elsewhere(group: str):
    desk = Desk(max_tokens=3)
    lose(desk, group, OTHER_PAIR)
    assert submitted(desk)[2:] == [("d1", 2, "", 3), ("p1", 2, "", 3)]
    assert desk.sent[2:4] == [(name, Cancel(desk.room, Reason.PEER_ENDED)) for name in ("p0", "d0")]
    say(desk, "p1", "a")
    say(desk, "d1", "abc")
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("abc", Finished("length"))
    assert (desk.book.migrated, len(desk.book)) == (1, 0)


def test_in_the_middle_it_goes_on_after_the_last_token():
    desk = Desk(max_tokens=5)
    say(desk, "d0", "ab")
    lose(desk, "d0", OTHER_PAIR)
    assert submitted(desk)[2:] == [("d1", 2, "ab", 3), ("p1", 2, "ab", 3)]
    say(desk, "p1", "c")
    say(desk, "d1", "cde")
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("abcde", Finished("length"))
    assert desk.exchange.count == 5, "no token counts twice"


@pytest.mark.parametrize("group", ["p0", "d0"])
def test_during_the_hand_over_the_first_token_is_kept(group: str):
    desk = Desk(max_tokens=2)
    say(desk, "p0", "a")
    lose(desk, group, pair("p1", "d1"))
    assert submitted(desk)[2:] == [("p1", 2, "a", 1)], "prefill does the last one alone"
    say(desk, "p1", "b")
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("ab", Finished("length"))


def test_what_the_lost_group_still_says_is_not_heard():
    desk = Desk()
    say(desk, "d0", "a")
    lose(desk, "d0", pair("p1", "d1"))
    desk.book.on_message("d0", Token(desk.room, 1, ord("x")))
    desk.book.on_message("p0", Done(desk.room, Reason.PEER_ENDED))
    desk.book.on_message("d1", Token(desk.room, 1, ord("y")))
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("a", None)


def test_the_groups_of_the_lost_attempt_may_be_those_of_the_next_one():
    desk = Desk()
    say(desk, "d0", "ab")
    lose(desk, "d0", pair("p0", "d1"))
    desk.book.on_message("p0", Done(desk.room, Reason.PEER_ENDED))
    say(desk, "p0", "c")
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("abc", None)


def test_one_group_that_does_both_is_replaced_by_another():
    desk = Desk(max_tokens=3, route=ALONE)
    say(desk, "c0", "ab")
    lose(desk, "c0", Route((head(RoleName.COLOCATED, "c1"),)))
    assert submitted(desk)[1:] == [("c1", 2, "ab", 1)]


def test_a_group_that_takes_no_messages_is_not_waited_for():
    desk = Desk()
    desk.full.add("p1")
    desk.route = OTHER_PAIR
    say(desk, "d0", "a")
    desk._again = desk.book._again = lambda before, work, without, _: THIRD_PAIR if "p1" in without else OTHER_PAIR
    desk.book.on_lost("d0", "it burnt")
    assert [group for group, *_ in submitted(desk)[2:]] == ["d1", "p1", "d2", "p2"]
    assert ("d1", Cancel(Room(desk.room.rid, 2), Reason.PEER_ENDED)) in desk.sent, "it has its part already"
    assert desk.exchange.end is None


# what is told and counted


def test_a_stop_string_is_found_across_the_loss():
    desk = Desk(stops=("END",))
    say(desk, "d0", "go EN")
    lose(desk, "d0", OTHER_PAIR)
    say(desk, "p1", "D")
    assert ("".join(desk.exchange.take()), desk.exchange.end) == ("go ", Finished("stop", by_stop_string=True))
    assert desk.cancels()[2:] == [("p1", Reason.STOP_STRING), ("d1", Reason.STOP_STRING)]


def test_an_end_of_sequence_after_the_loss_is_the_end():
    desk = Desk()
    say(desk, "d0", "ab")
    lose(desk, "d0", OTHER_PAIR)
    desk.book.on_message("p1", Token(desk.exchange.attempt.room, 0, 256))
    assert (desk.exchange.end, desk.exchange.count) == (Finished("stop"), 3)


def test_it_keeps_its_draws_its_age_and_its_deadline():
    desk = Desk()
    sampled = Sampling(0.5, 0.9, 3)
    other = desk.open(Room(RequestId(8), 1), sampling=sampled)
    desk.clock.move(100)
    lose(desk, "d0", OTHER_PAIR)
    again = [submit for _, submit in desk.submits() if submit.work.room == Room(RequestId(8), 2)]
    assert [(s.work.sampling, s.work.age_ms, s.remaining_ms) for s in again] == [(sampled, 100_000, 500_000)] * 2
    desk.clock.move(500)
    assert (desk.code(), other.end.error.code) == ("deadline_exceeded", "deadline_exceeded")
    assert desk.sent[-1] == ("d1", Cancel(Room(RequestId(8), 2), Reason.DEADLINE))
    assert len(desk.book) == 0


def test_a_client_that_leaves_afterwards_is_told_to_the_new_groups():
    desk = Desk()
    lose(desk, "p0", OTHER_PAIR)
    desk.sent.clear()
    desk.exchange.abandon()
    room = Room(desk.room.rid, 2)
    assert desk.sent == [(group, Cancel(room, Reason.CLIENT_GONE)) for group in ("p1", "d1")]


def test_a_client_that_has_left_is_not_computed_for():
    desk = Desk()
    desk.exchange.abandon()
    lose(desk, "p0", OTHER_PAIR)
    assert len(desk.submits()) == 2


def test_without_another_pair_the_text_so_far_ends_with_the_cause():
    desk = Desk()
    say(desk, "d0", "ab")
    lose(desk, "d0", None)
    assert ("".join(desk.exchange.take()), desk.code()) == ("ab", "group_lost")
    assert "decode group d0 was lost: it burnt" in desk.exchange.end.error.message
    assert desk.cancels() == both(Reason.PEER_ENDED)


# bounds


def test_both_groups_of_a_pair_may_be_lost_at_once():
    desk = Desk()
    lose(desk, "p0", OTHER_PAIR)
    lose(desk, "d0", OTHER_PAIR)
    assert [group for group, *_ in submitted(desk)[2:]] == ["d1", "p1"]


def test_a_pair_that_falls_piece_by_piece_counts_once_against_a_request():
    desk = Desk()
    lose(desk, "p0", pair("p1", "d0"))
    lose(desk, "d0", OTHER_PAIR)
    assert (desk.exchange.end, desk.exchange.losses.crashed) == (None, ["p0"])
    assert submitted(desk)[-2:] == [("d1", 3, "", 100), ("p1", 3, "", 100)]


def test_a_loss_during_the_retry_is_another_one():
    desk = Desk()
    lose(desk, "p0", OTHER_PAIR, crashed=False)
    lose(desk, "d1", THIRD_PAIR)
    assert [group for group, *_ in submitted(desk)[4:]] == ["d2", "p2"]
    assert desk.book.migrated == LOSSES_MAX


def test_losses_are_bounded():
    desk = Desk()
    for prefill in range(LOSSES_MAX):
        lose(desk, f"p{prefill}", pair(f"p{prefill + 1}", "d1"), crashed=False)
    lose(desk, f"p{LOSSES_MAX}", OTHER_PAIR, crashed=False)
    assert (desk.code(), desk.exchange.end.error.status) == ("group_lost", 502)
    assert desk.book.migrated == LOSSES_MAX
    assert len(desk.book.quarantine) == 0


def test_who_was_on_two_groups_when_they_crashed_is_not_tried_again():
    desk = Desk()
    say(desk, "d0", "ab")
    lose(desk, "d0", OTHER_PAIR)
    lose(desk, "d1", THIRD_PAIR)
    error = desk.exchange.end.error
    assert (error.status, error.code) == (500, "request_quarantined")
    assert "d0 and d1" in error.message
    assert error.headers()["x-should-retry"] == "false"
    assert [group for group, *_ in submitted(desk)] == ["d0", "p0", "d1", "p1"], "no third pair sees it"
    assert desk.cancels()[2:] == [("p1", Reason.PEER_ENDED), ("d1", Reason.PEER_ENDED)]
    assert (desk.book.quarantined, len(desk.book.quarantine), len(desk.book)) == (1, 1, 0)
    assert desk.book.quarantine.left_s(desk.exchange.stream.work, desk.clock.now) == 600


def test_a_group_that_was_told_to_end_counts_against_nobody():
    desk = Desk()
    lose(desk, "d0", OTHER_PAIR)
    lose(desk, "d1", THIRD_PAIR, crashed=False)
    assert (desk.exchange.end, desk.exchange.attempt.route) == (None, THIRD_PAIR)


def test_a_group_that_came_back_and_crashes_again_is_another_one():
    desk = Desk()
    lose(desk, "d0", Route((PAIR.heads[0], head(RoleName.DECODE, "d0", incarnation=7))))
    desk.book.on_lost("d0", "again")
    assert desk.code() == "request_quarantined"


def test_a_request_that_needed_the_lost_group_no_more_is_not_suspected():
    desk = Desk()
    say(desk, "d0", "ab")
    lose(desk, "p0", OTHER_PAIR)
    lose(desk, "d0", OTHER_PAIR)
    assert desk.exchange.losses.crashed == ["d0"]


# no group is lost, but the request is


def test_a_group_that_drains_is_left_for_another():
    desk = Desk()
    desk.route = OTHER_PAIR
    desk.done("d0", Reason.DRAINING)
    assert desk.without == ["d0"]
    assert submitted(desk)[2:] == [("d1", 2, "", 100), ("p1", 2, "", 100)]
    assert desk.cancels() == both(Reason.PEER_ENDED)
    assert (desk.exchange.losses.count, desk.book.migrated) == (0, 0)
    desk.book.on_message("p1", Done(desk.exchange.attempt.room, Reason.DRAINING))
    assert desk.without == ["d0", "p1"], "it does not go back"
    assert (desk.code(), desk.exchange.end.error.retry_after_s) == ("draining", 1)


def test_a_full_table_ends_a_new_request_and_no_other():
    desk = Desk()
    other = desk.open(Room(RequestId(8), 1))
    lose(desk, "d0", OTHER_PAIR)
    desk.route = THIRD_PAIR
    desk.book.on_message("d1", Done(desk.exchange.attempt.room, Reason.QUEUE_FULL))
    assert (desk.exchange.end, desk.exchange.attempt.route) == (None, THIRD_PAIR)
    assert other.attempt.route == OTHER_PAIR
    new = desk.open(Room(RequestId(9), 1))
    desk.book.on_message("d2", Done(Room(RequestId(9), 1), Reason.QUEUE_FULL))
    assert new.end.error.code == "queue_full"


def test_each_refusal_of_an_attempt_is_heard_once():
    desk = Desk()
    desk.route = OTHER_PAIR
    desk.done("d0", Reason.DRAINING)
    desk.done("p0", Reason.DRAINING)
    assert (desk.exchange.end, desk.exchange.attempt.room.attempt) == (None, 2)


def test_when_a_blamed_peer_says_nothing_the_request_goes_on_without_it():
    desk = Desk()
    desk.route = OTHER_PAIR
    desk.done("d0", Reason.PEER_ENDED)
    assert len(desk.submits()) == 2
    desk.clock.move(2)
    assert desk.without == ["p0"]
    assert desk.exchange.attempt.route == OTHER_PAIR
    assert desk.exchange.losses.crashed == []


def test_the_wait_for_a_reason_ends_with_its_attempt():
    desk = Desk()
    desk.done("d0", Reason.PEER_ENDED)
    desk.clock.move(1.5)
    desk.done("p0", Reason.TRANSFER_FAILED)
    desk.room = desk.exchange.attempt.room
    desk.done("d0", Reason.PEER_ENDED)
    desk.clock.move(1)
    assert desk.exchange.attempt.room == desk.room, "the wait of the first attempt is over, not that of the second"
    desk.route = OTHER_PAIR
    desk.clock.move(1)
    assert desk.exchange.attempt.room.attempt == 3


def test_a_group_that_took_the_router_for_gone_computes_anew():
    desk = Desk()
    say(desk, "d0", "a")
    for _ in range(LOSSES_MAX):
        desk.room = desk.exchange.attempt.room
        desk.done("d0", Reason.CLIENT_GONE)
        assert desk.exchange.end is None
    assert submitted(desk)[-1] == ("p0", 1 + LOSSES_MAX, "a", 99)
    desk.room = desk.exchange.attempt.room
    desk.done("d0", Reason.CLIENT_GONE)
    assert desk.code() == "request_aborted"


def test_after_a_stall_of_the_router_everything_is_computed_anew():
    desk = Desk()
    other = desk.open(Room(RequestId(8), 1))
    say(desk, "d0", "a")
    desk.book.on_stall(stalled(6.0))
    assert [each.attempt.room.attempt for each in (desk.exchange, other)] == [2, 2]
    assert desk.exchange.losses.crashed == []
    for _ in range(LOSSES_MAX):
        desk.book.on_stall(stalled(6.0))
    assert (desk.code(), len(desk.book)) == ("router_stalled", 0)
