"""One open choice of an answer, between the book that fills it and the HTTP handler that empties it."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from router.attempt import Attempt
from router.quarantine import Losses
from router.reader import Reader
from router.stream import Failed, Finished, Stream
from tandem.core.figures import Histogram
from tandem.core.requests import NO_LOGPROBS, Reason

UNREAD_PIECES = 64
"""Unread pieces kept apart; later ones are joined, since each costs memory of its own."""

LOGPROB_CHARS = 80
"""What the log-probability of one token costs, in characters of text that nobody has read."""


class Timer(Protocol):
    """Calls somebody at its time."""

    def cancel(self) -> None: ...


class Exchange:
    """The book delivers text and then finishes it, its HTTP handler takes both or abandons it."""

    def __init__(
        self,
        stream: Stream,
        time: Callable[[], float],
        deadline: float,
        reader: Reader,
        index: int,
        on_abandoned: Callable[["Exchange"], None],
        gaps: Histogram,
    ) -> None:
        """`gaps` gets the seconds between its tokens."""
        self.stream = stream
        self.opened = time()  # by the loop's clock, as are the next two and the deadline
        self.first_at: float | None = None  # when prefill's token came
        self.handed_over_at: float | None = None  # when decode told it again
        self.deadline = deadline
        self.evictions = 0  # how often a group had to give its pages up
        self.retries: Counter[Reason] = Counter()  # of a hand-over
        self.losses = Losses()
        self.avoided: list[str] = []  # groups that did not take it, though another one may
        self.doubted: Counter[str] = Counter()
        """How often each group had a part in a hand-over that failed: whose fault it was, nobody knows."""
        self.timers: list[Timer] = []
        """Cancelled when it is finished."""
        self.reader = reader
        self._index = index
        self._pieces: list[str] = []
        self._time = time
        self._on_abandoned = on_abandoned
        self._gaps = gaps
        self._told = 0  # tokens, when the last ones came
        self._told_at = 0.0
        told = stream.work.sampling.logprobs - NO_LOGPROBS  # a drawn token, and the likeliest ones
        self._logprob_chars = LOGPROB_CHARS * told
        self.whole = not (reader.streaming or told or stream.has_stops)
        """Nobody looks at its tokens before its end."""

    @property
    def attempt(self) -> Attempt:
        """Who computes it now."""
        return self.stream.attempt

    @property
    def end(self) -> Finished | Failed | None:
        """How it ended. Text may still be there to take."""
        return self.stream.end

    @property
    def count(self) -> int:
        """Tokens generated so far."""
        return self.stream.count

    def take(self) -> list[str]:
        """The text that came since the last call, a piece for each token where the client keeps up."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def abandon(self) -> None:
        """Nobody will read the rest. Does nothing after the end."""
        self._on_abandoned(self)

    def deliver(self, text: str) -> bool:
        """False when the client has not read more than it may leave unread."""
        self._measure()
        if self.handed_over_at is None:
            self._mark()
        if not text:
            return True
        if len(self._pieces) < UNREAD_PIECES or not self.reader.streaming:
            self._pieces.append(text)
        else:
            self._pieces[-1] += text
        return self.reader.tell(self._index, len(text) + self._logprob_chars)

    def finish(self) -> None:
        """The end is set: no timer is needed any more, and whoever waits wakes."""
        for timer in self.timers:
            timer.cancel()
        self.reader.tell(self._index, 0)

    def _measure(self) -> None:
        """Tokens that come together have come one after the other."""
        told, count = self._told, self.stream.count
        if count > told:
            now = self._time()
            if told:
                self._gaps.observe((now - self._told_at) / (count - told), count - told)
            self._told, self._told_at = count, now

    def _mark(self) -> None:
        if self.first_at is None and self.stream.count:
            self.first_at = self._time()
        if self.stream.handed_over:
            self.handed_over_at = self._time()
