"""Transferred and release by ring votes: the questions that are asked until everyone can say yes.

A poll is asked again only after its last outcome is in, and ever later the longer it has found nothing: a vote that is
always open would make the ring spin. What it finds becomes the same verdict that the store would have led to.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tandem.core.ids import Room
from tandem.core.inputs import Kind, Verdict
from tandem.core.messages import Fact, Progress
from tandem.core.plan import Ask, Question

POLL_MS = 2
"""The wait after the first no; it doubles with each further one."""
MOST_POLL_MS = 256

CONCLUDES: dict[Question, tuple[bool, Kind]] = {
    Question.LANDED: (True, Kind.TRANSFERRED),
    Question.INTACT: (False, Kind.FAILED),
    Question.QUIET: (True, Kind.QUIET),
}
"""Which outcome of which poll is a verdict: good news needs everyone, bad news needs anyone."""


def answer(question: Question, fact: Fact) -> bool:
    """What a rank that knows `fact` says to a poll."""
    match question:
        case Question.LANDED:
            return fact.progress == Progress.SUCCESS
        case Question.INTACT:
            return not fact.failed
        case _:
            return fact.quiet


class _Pace(NamedTuple):
    """What is asked about a room, when it may be asked again, and how long it waits after a no."""

    questions: tuple[Question, ...]
    next_ms: int
    wait_ms: int


class Polls:
    """Which rooms are being asked about, and when the others are due. Replicated.

    All questions about a room ride on the same baton: a rank that has failed and is quiet says both at once.
    """

    def __init__(self) -> None:
        self._out: dict[Room, int] = {}  # questions whose outcome is not in
        self._pace: dict[Room, _Pace] = {}

    def due(self, wanted: Mapping[Room, Sequence[Question]], most: int, now_ms: int) -> list[Ask]:
        """The questions of this step, at most `most`; rooms that have been due for longest come first."""
        self._pace = {room: self._kept(room, tuple(questions), now_ms) for room, questions in wanted.items()}
        ready = [room for room, pace in self._pace.items() if room not in self._out and pace.next_ms <= now_ms]
        asks: list[Ask] = []
        for room in sorted(ready, key=lambda room: self._pace[room].next_ms):
            if len(asks) + len(wanted[room]) > most:
                break
            questions, _, wait_ms = self._pace[room]
            self._pace[room] = _Pace(questions, now_ms + wait_ms, min(2 * wait_ms, MOST_POLL_MS))
            self._out[room] = len(questions)
            asks += [Ask(question, room) for question in questions]
        return asks

    def _kept(self, room: Room, questions: tuple[Question, ...], now_ms: int) -> _Pace:
        """A room's pace, or a fresh one: what was long in vain may be true soon once other things are asked."""
        pace = self._pace.get(room)
        return pace if pace is not None and pace.questions == questions else _Pace(questions, now_ms, POLL_MS)

    def wake_ms(self) -> int | None:
        """When the next room is due, unless its last outcomes have to come first."""
        return min((pace.next_ms for room, pace in self._pace.items() if room not in self._out), default=None)

    def close(self, ask: Ask, yes: bool) -> Verdict | None:
        """An outcome is in: the verdict it means, if any."""
        self._out[ask.room] -= 1
        if not self._out[ask.room]:
            del self._out[ask.room]
        expected, kind = CONCLUDES[ask.question]
        return Verdict(ask.room, kind) if yes is expected else None
