"""Numbered sessions: in order and once whatever the link does, and who has forgotten is found out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer import reliable
from kvtransfer.reliable import RESEND_S, WINDOW, Session
from tandem.core.messages import FORGOTTEN, Heard, Numbered


class End:
    """One side, and what it has posted while it could."""

    def __init__(self) -> None:
        self.session: Session[int, int] = Session(1, self.post)
        self.out: list[Any] = []
        self.got: list[int] = []
        self.connected = True

    def post(self, message: Any) -> bool:
        if self.connected:
            self.out.append(message)
        return self.connected

    def say(self, *words: int) -> None:
        for word in words:
            assert self.session.say(word)

    def taken(self) -> list[Any]:
        out, self.out = self.out, []
        return out

    def hear(self, message: Any) -> bool:
        """False: the other side has forgotten the session."""
        if isinstance(message, Heard):
            return self.session.on_heard(message)
        if (word := self.session.on_numbered(message)) is not None:
            self.got.append(word)
        self.session.answer()
        return True


def test_words_are_numbered_from_one_and_heard_in_order() -> None:
    speaker, hearer = End(), End()
    speaker.say(10, 11)
    sent = speaker.taken()
    assert sent == [Numbered(1, 1, 10), Numbered(1, 2, 11)]
    for message in sent:
        hearer.hear(message)
    assert hearer.got == [10, 11]
    assert hearer.taken() == [Heard(1, 1), Heard(1, 2)]
    speaker.hear(Heard(1, 2))
    assert speaker.session.unheard == 0


def test_one_answer_tells_of_all_that_came() -> None:
    hearer = End()
    for seq in (1, 2, 3):
        hearer.session.on_numbered(Numbered(1, seq, 0))
    hearer.session.answer()
    hearer.session.answer()
    assert hearer.taken() == [Heard(1, 3)]


def test_an_answer_that_could_not_leave_is_still_owed() -> None:
    hearer = End()
    hearer.connected = False
    hearer.hear(Numbered(1, 1, 0))
    hearer.connected = True
    hearer.session.answer()
    assert hearer.taken() == [Heard(1, 1)]


def test_what_is_overdue_is_said_again_from_the_oldest_on() -> None:
    speaker = End()
    speaker.say(10, 11, 12)
    speaker.session.tick(0.0)
    speaker.hear(Heard(1, 1))
    speaker.taken()
    speaker.session.tick(RESEND_S)
    assert speaker.taken() == [], "something new has been heard since"
    speaker.session.tick(2 * RESEND_S)
    assert speaker.taken() == [Numbered(1, 2, 11), Numbered(1, 3, 12)]


def test_what_is_said_shortly_before_a_tick_is_not_overdue_at_it() -> None:
    speaker = End()
    speaker.session.tick(0.0)
    speaker.say(10)
    speaker.session.tick(RESEND_S)
    assert speaker.taken() == [Numbered(1, 1, 10)]


def test_words_that_are_not_the_next_one_are_dropped_and_answered() -> None:
    hearer = End()
    for seq in (2, 1, 1):
        hearer.hear(Numbered(1, seq, seq))
    assert hearer.got == [1]
    assert hearer.taken() == [Heard(1, 0), Heard(1, 1), Heard(1, 1)]


def test_a_word_that_cannot_leave_keeps_those_behind_it_back() -> None:
    speaker = End()
    speaker.connected = False
    speaker.say(10)
    speaker.connected = True
    speaker.say(11)
    assert speaker.taken() == [Numbered(1, 1, 10), Numbered(1, 2, 11)]


def test_what_could_not_leave_does_at_the_next_tick() -> None:
    speaker = End()
    speaker.connected = False
    speaker.say(10)
    speaker.connected = True
    speaker.session.tick(0.0)
    assert speaker.taken() == [Numbered(1, 1, 10)]


def test_no_more_than_a_window_is_under_way() -> None:
    speaker = End()
    speaker.say(*range(WINDOW + 2))
    assert len(speaker.taken()) == WINDOW
    speaker.hear(Heard(1, 1))
    assert speaker.taken() == [Numbered(1, WINDOW + 1, WINDOW)]


def test_a_peer_that_hears_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable, "MAX_UNHEARD", 2)
    speaker = End()
    assert [speaker.session.say(word) for word in range(3)] == [True, True, False]
    assert speaker.session.unheard == 2


@pytest.mark.parametrize("seq", [1, 0, FORGOTTEN, 4])
def test_less_than_before_or_more_than_was_said_comes_from_one_who_has_forgotten(seq: int) -> None:
    speaker = End()
    speaker.say(10, 11, 12)
    assert speaker.hear(Heard(1, 2))
    assert not speaker.hear(Heard(1, seq))
    assert speaker.session.unheard == 1


def test_an_answer_to_words_from_before_going_back_counts() -> None:
    speaker = End()
    speaker.say(10, 11, 12)
    speaker.connected = False
    for tick in range(3):
        speaker.session.tick(tick * RESEND_S)
    assert speaker.hear(Heard(1, 3))
    assert speaker.session.unheard == 0


class Link:
    """Two sides, and what is on its way between them. Words lose, double and overtake each other; answers do not.

    (An answer that is overtaken by a later one looks like one from somebody who has forgotten. On a socket it is not.)
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ends = (End(), End())
        self.said: tuple[list[int], list[int]] = ([], [])
        self.words: tuple[list[Any], list[Any]] = ([], [])  # to each end
        self.answers: tuple[list[Any], list[Any]] = ([], [])

    def collect(self) -> None:
        for number, end in enumerate(self.ends):
            for message in end.taken():
                lane = self.answers if isinstance(message, Heard) else self.words
                lane[1 - number].append(message)

    def do(self, what: str, end: int, place: int) -> None:
        words, answers = self.words[end], self.answers[end]
        match what:
            case "say":
                self.said[end].append(len(self.said[end]))
                self.ends[end].say(self.said[end][-1])
            case "lose" if words:
                words.pop(place % len(words))
            case "double" if words:
                words.append(words[place % len(words)])
            case "hear" if words:
                self.ends[end].hear(words.pop(place % len(words)))
            case "lose answer" if answers:
                answers.pop(place % len(answers))
            case "hear answer" if answers:
                assert self.ends[end].hear(answers.pop(0)), "nobody has forgotten anything"
            case "wait":
                self.now_s += RESEND_S / 2
                for one in self.ends:
                    one.session.tick(self.now_s)
        self.collect()

    def settle(self) -> None:
        """The link heals."""
        for _ in range(6):
            self.do("wait", 0, 0)
            for end in (0, 1):
                while self.words[end] or self.answers[end]:
                    self.do("hear", end, 0)
                    self.do("hear answer", end, 0)

    def hear_any_answer(self, end: int, place: int, *, again: bool) -> bool:
        """False: it looks as if the session were forgotten."""
        answers = self.answers[end]
        if not answers:
            return True
        answer = answers[place % len(answers)]
        if not again:
            answers.remove(answer)
        known = self.ends[end].hear(answer)
        self.collect()
        return known


WHAT = ["say", "lose", "double", "hear", "lose answer", "hear answer", "wait"]
STEP = st.tuples(st.sampled_from(WHAT), st.integers(0, 1), st.integers(0, 9))


@given(st.lists(STEP, max_size=80))
def test_whatever_the_link_does_all_words_come_in_order_and_once(steps: list[tuple[str, int, int]]) -> None:
    link = Link()
    for step in steps:
        link.do(*step)
        for end in (0, 1):
            heard = link.ends[end].got
            assert heard == link.said[1 - end][: len(heard)]
    link.settle()
    assert [link.ends[end].got for end in (1, 0)] == [*link.said]
    assert [end.session.unheard for end in link.ends] == [0, 0]


@given(st.lists(STEP, max_size=80))
def test_when_answers_double_and_overtake_each_other_as_well_no_word_comes_twice_or_early(
    steps: list[tuple[str, int, int]],
) -> None:
    """A session may end then, but what has come until then is right."""
    link = Link()
    for what, end, place in steps:
        if what != "hear answer":
            link.do(what, end, place)
        elif not link.hear_any_answer(end, place, again=place % 3 == 0):
            return
        for one in (0, 1):
            heard = link.ends[one].got
            assert heard == link.said[1 - one][: len(heard)]
    known = all(link.hear_any_answer(end, 0, again=False) for end in (0, 1) for _ in range(100))
    if known:
        link.settle()
        assert [link.ends[end].got for end in (1, 0)] == [*link.said]
