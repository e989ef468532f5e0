"""Two-pass ring votes: folding, coming back, and what does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.ring import OpenVotes, fold, unanimous
from tandem.core.errors import Divergence
from tandem.core.ids import RequestId, Room, Tick
from tandem.core.inputs import Outcome
from tandem.core.plan import Ask, Question

ASKS = tuple(Ask(Question.PREALLOC, Room(RequestId(number), 1), "p0") for number in (1, 2, 3))


@given(st.integers(1, 70).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)))
def test_a_question_passes_only_if_every_rank_says_yes(answers: list[list[bool]]):
    questions = len(answers[0])
    ballot = unanimous(questions)
    for mine in answers:
        ballot = fold(ballot, mine)
    votes = OpenVotes()
    votes.open(Tick(1), tuple(Ask(Question.PREALLOC, Room(RequestId(n), 1), "p0") for n in range(questions)))
    outcome = [yes for _, yes in votes.close(Outcome(Tick(1), ballot))]
    assert outcome == [all(mine[index] for mine in answers) for index in range(questions)]


def test_a_vote_is_open_until_its_outcome_is_in():
    votes = OpenVotes()
    votes.open(Tick(4), ASKS)
    assert votes.on_baton(Tick(4)) == ASKS
    assert votes.on_baton(Tick(5)) == ()
    assert len(votes) == 1
    assert votes.close(Outcome(Tick(4), 0b101)) == [(ASKS[0], True), (ASKS[1], False), (ASKS[2], True)]
    assert len(votes) == 0


def test_no_question_opens_no_vote():
    votes = OpenVotes()
    votes.open(Tick(4), ())
    assert len(votes) == 0


@pytest.mark.parametrize("tick", [3, 5])
def test_the_outcome_of_a_vote_that_is_not_open_ends_the_epoch(tick: int):
    votes = OpenVotes()
    votes.open(Tick(4), ASKS)
    with pytest.raises(Divergence, match=f"tick {tick}"):
        votes.close(Outcome(Tick(tick), 1))


def test_an_outcome_is_applied_once():
    votes = OpenVotes()
    votes.open(Tick(4), ASKS)
    votes.close(Outcome(Tick(4), 1))
    with pytest.raises(Divergence):
        votes.close(Outcome(Tick(4), 1))
