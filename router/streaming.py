"""One streamed answer on its way: events are written when they come, and no task wakes for that."""

import asyncio

from router.choices import Choices
from router.errors import ApiError
from router.exchange import Exchange
from router.format import PING, Format
from router.line import Line, nothing

News = list[tuple[int, Exchange]]


class Streaming:
    """`begin`, then the head may be sent, then `rest`. While the client does not read, nothing is taken for it."""

    def __init__(self, choices: Choices, form: Format, line: Line, ping_s: float, stalled_s: float) -> None:
        self._choices = choices
        self._form = form
        self._line = line
        self._ping_s = ping_s
        self._stalled_s = stalled_s
        self._loop = asyncio.get_running_loop()
        self._news: News = []  # the first
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[bytes] = self._loop.create_future()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0  # when something was last written, or first could not be
        self._started = False
        self._waiting = False  # for the client to read

    async def begin(self) -> ApiError | None:
        """Wait for the first news, or the first ping: until then a failure still has a status of its own."""
        self._choices.listen(self._ring)
        timer = self._loop.call_later(self._ping_s, self._begin)
        try:
            await self._begun
        finally:
            timer.cancel()
        self._news = self._choices.take()
        return self._choices.failure

    async def rest(self) -> bytes:
        """Write until nothing more will come. What is returned is still to be written, and is the end."""
        self._line.resumed = self._resumed
        self._started = True
        try:
            self._write(self._news)
            self._look()
            self._choices.listen(self._ring)  # for what has come since the first news
            return await self._over
        finally:
            self._line.resumed = nothing
            for handle in (self._soon, self._timer):
                if handle is not None:
                    handle.cancel()

    def _begin(self) -> None:
        if not self._begun.done():
            self._begun.set_result(None)

    def _ring(self) -> None:
        """There is news. What else comes in this round of the loop goes with it."""
        if not self._begun.done():
            self._begin()
        elif self._started and self._soon is None:
            self._soon = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._soon = None
        if self._waiting or self._over.done():
            return
        if self._line.paused:
            self._waiting = True
            self._since = self._loop.time()
            self._arm(self._stalled_s)
            return
        try:
            self._write(self._choices.take())
        except BaseException as bug:  # the loop only logs it, and the client would wait for ever
            self._over.set_exception(bug)
            raise

    def _write(self, news: News) -> None:
        out = b"".join([self._form.news(index, exchange) for index, exchange in news])
        if self._choices.failure is not None:
            self._over.set_result(out + self._form.failing(self._choices.failure))
        elif self._choices.over:
            self._over.set_result(out + self._form.ending(self._choices))
        elif out or not news:  # what was new may have gone with what was before it
            self._since = self._loop.time()
            self._line.write_chunk(out or PING)

    def _resumed(self) -> None:
        if self._waiting:
            self._waiting = False
            self._since = self._loop.time()
            self._arm(self._ping_s)
            self._ring()

    def _look(self) -> None:
        """One timer for pings and for clients that do not read: it moves on when it finds that it is early."""
        left_s = self._since + (self._stalled_s if self._waiting else self._ping_s) - self._loop.time()
        if left_s > 0:
            self._arm(left_s)
        elif not self._waiting:
            self._arm(self._ping_s)
            if self._soon is not None:
                self._soon.cancel()
            self._go_on()
        elif not self._over.done():  # its connection is worth no more memory
            self._choices.abandon()
            self._line.abort()
            self._over.set_result(b"")

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(after_s, self._look)
