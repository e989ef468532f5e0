"""Polls: which questions ride on a ballot, how often they are asked again, and what their outcomes mean."""

import pytest

from consensus.polls import MOST_POLL_MS, POLL_MS, Polls, answer
from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Kind, Verdict
from tandem.core.messages import Fact, Progress
from tandem.core.plan import Ask, Question

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))
BOTH = [Question.INTACT, Question.QUIET]
INTACT, QUIET = (Ask(question, A) for question in BOTH)
MANY = 64


def asked_again_at(polls: Polls, asks: list[Ask], now_ms: int) -> int:
    """All say that nothing has changed; when the room is due once more."""
    for ask in asks:
        assert polls.close(ask, ask.question is Question.INTACT) is None
    polls.due({A: BOTH}, 0, now_ms)
    next_ms = polls.wake_ms()
    assert next_ms is not None
    return next_ms


# answers


@pytest.mark.parametrize(
    ("question", "fact", "yes"),
    [
        (Question.LANDED, Fact(Progress.SUCCESS), True),
        (Question.LANDED, Fact(Progress.TRANSFERRING), False),
        (Question.INTACT, Fact(), True),
        (Question.INTACT, Fact(Progress.SUCCESS, failed=True), False),
        (Question.QUIET, Fact(quiet=True), True),
        (Question.QUIET, Fact(Progress.SUCCESS), False),
    ],
)
def test_a_rank_answers_from_its_own_facts(question: Question, fact: Fact, yes: bool):
    assert answer(question, fact) is yes


@pytest.mark.parametrize(
    ("question", "yes", "kind"),
    [
        (Question.LANDED, True, Kind.TRANSFERRED),
        (Question.LANDED, False, None),
        (Question.INTACT, True, None),
        (Question.INTACT, False, Kind.FAILED),
        (Question.QUIET, True, Kind.QUIET),
        (Question.QUIET, False, None),
    ],
)
def test_good_news_needs_everyone_and_bad_news_anyone(question: Question, yes: bool, kind: Kind | None):
    polls = Polls()
    (ask,) = polls.due({A: [question]}, MANY, 0)
    assert polls.close(ask, yes) == (Verdict(A, kind) if kind else None)


# when


def test_nothing_is_asked_about_nobody():
    polls = Polls()
    assert polls.due({}, MANY, 0) == []
    assert polls.wake_ms() is None


def test_all_questions_about_a_room_ride_on_one_ballot():
    polls = Polls()
    assert polls.due({A: BOTH, B: [Question.QUIET]}, MANY, 0) == [INTACT, QUIET, Ask(Question.QUIET, B)]


def test_a_room_whose_questions_do_not_all_fit_waits_with_all_of_them():
    polls = Polls()
    wanted = {A: BOTH, B: BOTH, C: BOTH}
    assert [ask.room for ask in polls.due(wanted, 3, 0)] == [A, A]
    assert polls.wake_ms() == 0, "the others are due already"
    assert [ask.room for ask in polls.due(wanted, 4, 0)] == [B, B, C, C]


def test_who_has_been_due_for_longest_is_asked_about_first():
    polls = Polls()
    asks = polls.due({A: BOTH}, MANY, 0)
    asked_again_at(polls, asks, 1)
    polls.due({A: BOTH, B: BOTH}, 0, 1)
    assert [ask.room for ask in polls.due({A: BOTH, B: BOTH}, MANY, POLL_MS + 1)] == [B, B, A, A]


def test_a_room_is_not_asked_about_again_before_its_outcomes_are_in():
    polls = Polls()
    polls.due({A: BOTH}, MANY, 0)
    assert polls.due({A: BOTH}, MANY, 10_000) == []
    assert polls.wake_ms() is None
    polls.close(INTACT, True)
    assert polls.due({A: BOTH}, MANY, 10_000) == []
    polls.close(QUIET, False)
    assert polls.due({A: BOTH}, MANY, 10_000) == [INTACT, QUIET]


def test_it_is_asked_ever_later_up_to_a_limit():
    polls, now_ms, waits = Polls(), 0, []
    for _ in range(10):
        asks = polls.due({A: BOTH}, MANY, now_ms)
        assert asks == [INTACT, QUIET]
        next_ms = asked_again_at(polls, asks, now_ms)
        assert polls.due({A: BOTH}, MANY, next_ms - 1) == []
        waits.append(next_ms - now_ms)
        now_ms = next_ms
    assert waits[:4] == [POLL_MS, 2 * POLL_MS, 4 * POLL_MS, 8 * POLL_MS]
    assert waits[-2:] == [MOST_POLL_MS, MOST_POLL_MS]


def test_a_new_question_about_a_room_is_asked_at_once():
    polls, now_ms = Polls(), 0
    for _ in range(8):
        now_ms = asked_again_at(polls, polls.due({A: BOTH}, MANY, now_ms), now_ms)
    before_it_is_due = now_ms - MOST_POLL_MS // 2
    assert polls.due({A: [Question.QUIET]}, MANY, before_it_is_due) == [QUIET]


def test_a_room_that_has_nothing_to_be_asked_any_more_is_forgotten():
    polls = Polls()
    asks = polls.due({A: BOTH}, MANY, 0)
    assert polls.due({}, MANY, 1) == []
    for ask in asks:
        polls.close(ask, True)
    assert polls.due({}, MANY, 2) == []
    assert (polls._out, polls._pace) == ({}, {})
