"""What others are told when an epoch ends, and what becomes of a process that does not get to its end."""

import logging
import os
import threading

import pytest

from tandem.core.ends import End, EndKind
from tandem.core.errors import Divergence
from tandem.runtime.endings import EXIT_UNUSABLE, EpochOver, Overdue, Stopped, Unusable, end_of

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (EpochOver("rank 1 was silent", EndKind.SILENT), End("rank 1 was silent", EndKind.SILENT)),
        (EpochOver("its engine was told to end"), End("its engine was told to end", EndKind.OTHER)),
        (Stopped(), End("d0 rank 0 was told to end", EndKind.LEFT)),
        (Unusable("its place was taken", EndKind.REPLACED), End("its place was taken", EndKind.REPLACED)),
        (Divergence("tick 7 after 5"), End("the ranks diverged: tick 7 after 5", EndKind.DIVERGED)),
        (KeyError("was silent for"), End("a bug on d0 rank 0: KeyError('was silent for')", EndKind.OTHER)),
    ],
)
def test_every_end_has_a_cause_for_the_others_and_a_kind_whatever_its_words_are(error: Exception, end: End):
    assert end_of(error, "d0 rank 0") == end


class Exits:
    """In place of os._exit."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self.statuses: list[int] = []

    def __call__(self, status: int) -> None:
        self.statuses.append(status)
        self.happened.set()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    made = Exits()
    monkeypatch.setattr(os, "_exit", made)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    return made


def test_who_does_not_get_to_its_end_is_ended_and_the_log_says_where_it_was(
    exits: Exits, caplog: pytest.LogCaptureFixture
):
    overdue = Overdue("d0 rank 1", 0.01)
    overdue.begin()
    overdue.begin()
    assert exits.happened.wait(DEADLINE_S)
    assert exits.statuses == [EXIT_UNUSABLE]
    assert "d0 rank 1 hangs after the end of its epoch" in caplog.text
    assert "in test_who_does_not_get_to_its_end" in caplog.text, "the stack of the thread that hangs"


def test_who_gets_there_in_time_goes_on(exits: Exits):
    overdue = Overdue("d0 rank 1", DEADLINE_S)
    overdue.begin()
    (waiting,) = [thread for thread in threading.enumerate() if thread.name == "overdue"]
    overdue.done()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert exits.statuses == []
