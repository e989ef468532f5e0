"""One open request, between the book that fills it and the HTTP handler that empties it."""

import asyncio
from collections import Counter
from collections.abc import Callable

from router.attempt import Attempt
from router.quarantine import Losses
from router.stream import Failed, Finished, Stream
from tandem.core.requests import Reason

UNREAD_PIECES = 64
"""Unread pieces kept apart; later ones are joined, since each costs memory of its own."""


class Exchange:
    """One open request: the book delivers text and then finishes it, its HTTP handler takes both or abandons it."""

    def __init__(
        self,
        stream: Stream,
        opened: float,
        deadline: float,
        unread_chars_max: int | None,
        on_abandoned: Callable[["Exchange"], None],
    ) -> None:
        self.stream = stream
        self.opened = opened  # by the loop's clock, as is the deadline
        self.deadline = deadline
        self.evictions = 0  # how often a group had to give its pages up
        self.retries = Counter[Reason]()  # of a hand-over
        self.losses = Losses()
        self.avoided: list[str] = []  # groups that did not take it, though another one may
        self.timers: list[asyncio.TimerHandle] = []
        """Cancelled when it is finished."""
        self._pieces: list[str] = []
        self._unread_chars = 0
        self._unread_chars_max = unread_chars_max
        self._news = asyncio.Event()
        self._on_abandoned = on_abandoned

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
        pieces, self._pieces, self._unread_chars = self._pieces, [], 0
        self._news.clear()
        return pieces

    async def ended(self) -> None:
        """Wait for the end, however it comes: the deadline is one."""
        while self.end is None:
            await self._news.wait()
            self._news.clear()

    async def news(self, timeout_s: float) -> None:
        """Wait for text or the end, at most `timeout_s`."""
        if self._pieces or self.end is not None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    def abandon(self) -> None:
        """Nobody will read the rest. Does nothing after the end."""
        self._on_abandoned(self)

    def deliver(self, text: str) -> bool:
        """False when the client has not read more than it may leave unread."""
        if not text:
            return True
        if len(self._pieces) < UNREAD_PIECES or self._unread_chars_max is None:
            self._pieces.append(text)
        else:
            self._pieces[-1] += text
        self._unread_chars += len(text)
        self._news.set()
        return self._unread_chars_max is None or self._unread_chars <= self._unread_chars_max

    def finish(self) -> None:
        """The end is set: no timer is needed any more, and whoever waits wakes."""
        for timer in self.timers:
            timer.cancel()
        self._news.set()
