"""One OpenTelemetry trace for each request that has ended: the ranks are asked what they remember, beside all else."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from starlette.types import Scope

from router.choices import Choices
from router.errors import ApiError
from router.membership import Watched
from router.otlp import Parent
from router.spans import Span, Told, request_span
from router.transfers import detail
from tandem.runtime.history import Attempt, Transfer

SETTLE_S = 0.2
"""After an answer's end, for the ranks' last words about it."""
PENDING_MAX = 64
"""Requests whose trace is being made; one more goes without."""
STOP_S = 2.0
"""For what is pending when the router ends."""
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

log = logging.getLogger("tandem.router")


class Exports(Protocol):
    """Where spans go."""

    def send(self, span: Span, parent: Parent | None) -> bool: ...

    def close(self) -> None: ...


class Tracing:
    """On the loop's thread; spans are sent on one of its own. `groups` are those that are known at that moment."""

    def __init__(self, exporter: Exports, groups: Callable[[], Sequence[Watched]], scale: float) -> None:
        self.dropped = 0
        """Requests that have no trace: too many ended at once, or the collector did not take it."""
        self._exporter = exporter
        self._groups = groups
        self._scale = scale
        self._pending: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="otlp")

    def over(self, told: Told, choices: Choices, parent: Parent | None) -> None:
        """A request has ended: its trace is made soon."""
        if len(self._pending) >= PENDING_MAX:
            self._drop("too many requests end at once")
            return
        rids = [f"{exchange.attempt.room.rid:016x}" for exchange in choices.exchanges]
        task = asyncio.get_running_loop().create_task(self._make(told, rids, parent))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def stop(self) -> None:
        """Send what is pending, and no more."""
        if self._pending:
            await asyncio.wait(self._pending, timeout=STOP_S)
        for task in self._pending:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._exporter.close()

    async def _make(self, told: Told, rids: Sequence[str], parent: Parent | None) -> None:
        await asyncio.sleep(SETTLE_S)
        attempts, silent = await remembered(rids, lambda rid: detail(self._groups(), rid, self._scale))
        span = request_span(told, attempts, silent)
        if not await asyncio.get_running_loop().run_in_executor(self._pool, self._exporter.send, span, parent):
            self._drop("the collector did not take it")

    def _drop(self, why: str) -> None:
        if not self.dropped:
            log.warning("a request has no trace: %s; others may follow", why)
        self.dropped += 1


async def remembered(
    rids: Sequence[str], ask: Callable[[str], Awaitable[Transfer]]
) -> tuple[list[Attempt], dict[str, str]]:
    """All attempts of all choices, and which ranks were not heard, with why."""
    attempts: list[Attempt] = []
    silent: dict[str, str] = {}
    for rid in rids:
        try:
            transfer = await ask(rid)
        except ApiError as error:  # nobody remembers it
            silent[rid] = error.message
        else:
            attempts += transfer.attempts
            silent |= transfer.silent
    return attempts, silent


def told_of(choices: Choices, prompt_tokens: int, arrived: float, queued_s: float, outcome: str) -> Told:
    """What the router knows. `arrived` is the loop's time."""
    now_us, now = time.time_ns() // 1000, asyncio.get_running_loop().time()
    return Told(
        request_id=f"{choices.exchanges[0].attempt.room.rid:016x}",
        arrived_us=now_us - int((now - arrived) * 1e6),
        queued_us=int(queued_s * 1e6),
        ended_us=now_us,
        prompt_tokens=prompt_tokens,
        tokens=choices.count,
        choices=len(choices.exchanges),
        outcome=outcome,
    )


def parent_of(scope: Scope) -> Parent | None:
    """W3C trace context: what the client's own trace is, if it sent one."""
    sent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
    found = TRACEPARENT.fullmatch(sent.decode("latin-1"))
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return Parent(int(found[1], 16), int(found[2], 16))
