"""Finds stop strings in text that comes in pieces, wherever the cuts are."""

from collections.abc import Sequence


class Stops:
    """Holds back what may become a stop string. The result does not depend on how the text was cut.

    The match that *ends* first wins, as if the text came one character at a time; of two that end together the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that may be delivered now. After a hit: always empty."""
        if self.hit or not self._stops:
            return "" if self.hit else text
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.hit, self._held = True, ""
            return text[: min(ends)[1]]
        keep = max(self._overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text has ended: what was held back is only text."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest proper prefix of `stop` that `text` ends with."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0 and not stop.startswith(text[at:]):
            at = text.find(stop[0], at + 1)
        return len(text) - at if at >= 0 else 0
