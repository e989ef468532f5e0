"""One stream of snapshots for all who look: made while somebody does, and once for everybody."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import msgspec

from router.dashboard.words import Snapshot
from router.errors import ApiError

PERIOD_S = 1.0
MOST_VIEWERS = 32
"""More pages than this are refused: every one costs the router a write each second."""
UNREAD_S = 30.0
"""Who has not taken a snapshot for so long has no place any more: others wait for one."""
FRESH_S = 3.0
"""Who comes within this time of the last snapshot is shown it at once."""


class Hub:
    """A page that reads slowly misses snapshots, and holds nobody up."""

    def __init__(
        self,
        make: Callable[[], Awaitable[Snapshot]],
        over: asyncio.Event,
        period_s: float = PERIOD_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        """`over` is set when the router ends, and then so do the streams."""
        self.viewers = 0
        self.made = 0
        """Snapshots so far."""
        self._make = make
        self._over = over
        self._period_s = period_s
        self._unread_s = unread_s
        self._latest = b""
        self._at = 0.0
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Whether one more page may look. Raises ApiError 503."""
        if self.viewers >= MOST_VIEWERS:
            text = f"{self.viewers} dashboards are open at this router, its limit: close one"
            raise ApiError(503, "too_many_dashboards", text, retry_after_s=10)

    async def stream(self, cut: Callable[[], None]) -> AsyncIterator[bytes]:
        """Server-sent events, a snapshot each, until the router ends. `cut` ends the stream of who takes none."""
        loop = asyncio.get_running_loop()
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                unread = loop.call_later(self._unread_s, cut)
                try:
                    yield event
                finally:
                    unread.cancel()

    async def _events(self) -> AsyncGenerator[bytes]:
        self.viewers += 1
        try:
            yield b"retry: 1000\n\n"
            coming = self._coming()
            if self._latest and asyncio.get_running_loop().time() - self._at < FRESH_S:
                yield self._latest
            while await self._is_told(coming):
                coming = self._coming()
                yield self._latest
        finally:
            self._leave()

    async def _is_told(self, coming: asyncio.Future[None]) -> bool:
        """Wait for the next snapshot; False at the end."""
        ending = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((coming, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if self._over.is_set():
            return False
        coming.result()  # raises what went wrong
        return True

    def _coming(self) -> asyncio.Future[None]:
        """That of the next snapshot; it is begun if nobody has looked so far."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        return self._next

    def _leave(self) -> None:
        self.viewers -= 1
        if self.viewers == 0 and self._task is not None:
            self._task.cancel()
            self._task, self._next = None, None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            encoded = msgspec.json.encode(await self._make())
            self._latest, self._at = b"event: snapshot\ndata: " + encoded + b"\n\n", loop.time()
            self.made += 1
            told, self._next = self._next, loop.create_future()
            if told is not None:
                told.set_result(None)
            await asyncio.sleep(max(0.0, began + self._period_s - loop.time()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug of ours ends all streams with it, and the next page begins anew."""
        if task.cancelled() or task is not self._task:
            return
        error, told = task.exception(), self._next
        self._task, self._next = None, None
        if error is not None and told is not None:
            told.set_exception(error)
