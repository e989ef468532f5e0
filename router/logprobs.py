"""The log-probabilities of one answer's tokens, told together with the text that they belong to."""

from collections import deque
from typing import NamedTuple

from tandem.core.requests import Logprobs

LEAST_LOGPROB = -9999.0
"""What OpenAI writes for minus infinity."""


class Scored(NamedTuple):
    """One token of an answer."""

    token: int
    logprobs: Logprobs
    start: int  # where its text begins, in characters of the answer


class Scores:
    """Holds a token back for as long as its text is held back, so a stop string cuts both at the same place.

    A token goes with the first piece that has some of its text; one without text goes with the text after it.
    """

    def __init__(self) -> None:
        self._held: deque[Scored] = deque()
        self._end = 0
        self._told = 0

    def add(self, token: int, logprobs: Logprobs, chars: int) -> None:
        """The next token, which made so many characters of text."""
        self._held.append(Scored(token, logprobs, self._end))
        self._end += chars

    def take(self, chars: int) -> list[Scored]:
        """The tokens of the next so many characters."""
        self._told += chars
        taken = []
        while self._held and self._held[0].start < self._told:
            taken.append(self._held.popleft())
        return taken

    def rest(self) -> list[Scored]:
        """Those that no text has followed. Not for an answer that a stop string has cut: what was cut is among them."""
        rest, self._held = list(self._held), deque()
        return rest


def finite(logprob: float) -> float:
    """JSON has no minus infinity."""
    return max(logprob, LEAST_LOGPROB)
