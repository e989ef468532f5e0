"""Load from a process of its own, by the cheapest client there is: ready bytes, and a search for the answer's end.

It reads the CPU time and the memory of who is measured at the moments between which its requests lie.
"""

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from bench.apart import answer, apart, cpu_us, ordered

PATIENCE_S = 20.0
END_OF_STREAM = b"data: [DONE]\n\n"
EVENT_STREAM = b"text/event-stream"
LAST_CHUNK = b"\r\n0\r\n\r\n"
FIRST = b"data: {"
STATUS = b"HTTP/1.1 200"
KIB = 1024


class Rounds(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many requests, at most `at_once` of them open: each connection sends the next one when it has its answer."""

    port: int
    bodies: tuple[str, ...]
    pid: int
    at_once: int
    count: int


class Held(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many streams that are open at once, watched for so long from when all have begun."""

    port: int
    body: str
    pid: int
    streams: int
    seconds: float


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. Memory is that of the measured process before and after: resident KiB."""

    cpu_us: float
    wall_s: float
    rss_kib: tuple[float, float]
    worst_ms: float = 0.0  # between two events of one stream
    usual_ms: float = 0.0
    events: int = 0


def run(order: Rounds | Held) -> Found:
    """Load now, and what it took. Raises CalledProcessError for an answer that was not what was asked for."""
    return apart("bench.router.load", order, Found)


def request(port: int, body: str) -> bytes:
    """One request, as bytes."""
    lines = ("POST /v1/completions HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json")
    content = body.encode()
    return "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content


def is_whole(answer_so_far: bytes) -> bool:
    """Whether an answer has come to its end. Raises ConnectionError for one that is none of status 200."""
    head, separator, rest = answer_so_far.partition(b"\r\n\r\n")
    if not separator:
        return False
    if not head.startswith(STATUS):
        raise ConnectionError(answer_so_far[:500].decode(errors="replace"))
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at >= 0:
        return len(rest) >= int(lower[at + 15 :].split(b"\r\n", 1)[0])
    return rest.endswith(LAST_CHUNK)


def rss_kib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / KIB


class Asking(asyncio.Protocol):
    """One connection that asks again and again, until `next_request` gives nothing more."""

    def __init__(self, next_request: Callable[[], bytes | None], over: Callable[[str], None]) -> None:
        self._next = next_request
        self._over = over
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own, which are no subclasses
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        try:
            if not is_whole(self._answer):
                return
        except ConnectionError as error:
            self._over(str(error))
            return
        if EVENT_STREAM in self._answer and END_OF_STREAM not in self._answer[-200:]:
            self._over(f"a stream ended without its last event: {self._answer[-500:]!r}")
        self._answer = b""
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer or exc is not None:
            self._over(f"the connection was lost: {exc}")

    def _ask(self) -> None:
        content = self._next()
        if content is None:
            self._over("")
        else:
            self._transport.write(content)


async def rounds(order: Rounds) -> Found:
    """Closed loop."""
    requests = [request(order.port, body) for body in order.bodies]
    sent, done, failed = 0, 0, ""
    finished = asyncio.Event()

    def next_request() -> bytes | None:
        nonlocal sent
        sent += 1
        return requests[sent % len(requests)] if sent <= order.count else None

    def over(why: str) -> None:
        nonlocal done, failed
        done, failed = done + 1, failed or why
        if done == order.at_once or why:
            finished.set()

    loop = asyncio.get_running_loop()
    begun_s, before_us, before_kib = time.monotonic(), cpu_us(order.pid), rss_kib(order.pid)
    for _ in range(order.at_once):
        await loop.create_connection(lambda: Asking(next_request, over), "127.0.0.1", order.port)
    await asyncio.wait_for(finished.wait(), PATIENCE_S + order.count / 10)
    if failed:
        raise ConnectionError(failed)
    return Found(
        cpu_us=cpu_us(order.pid) - before_us,
        wall_s=time.monotonic() - begun_s,
        rss_kib=(before_kib, rss_kib(order.pid)),
    )


class Holding(asyncio.Protocol):
    """One open stream: when its events come."""

    def __init__(self, content: bytes, begun: Callable[[], None], failed: Callable[[str], None]) -> None:
        self._content = content
        self._begun = begun
        self._failed = failed
        self._head = b""
        self.came_s: list[float] = []
        self.leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own, which are no subclasses
        self.transport.write(self._content)

    def data_received(self, data: bytes) -> None:
        if not self.came_s:
            self._head += data
            if not self._head.startswith(STATUS[: len(self._head)]):
                self._failed(self._head[:500].decode(errors="replace"))
        if FIRST in data:
            self.came_s.append(time.monotonic())
            if len(self.came_s) == 1:
                self._begun()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.leaving:
            self._failed(f"the stream was cut: {exc}")


async def held(order: Held) -> Found:
    """Open all, watch, leave."""
    content = request(order.port, order.body)
    loop = asyncio.get_running_loop()
    all_begun: asyncio.Future[None] = loop.create_future()
    begun = 0

    def one_begun() -> None:
        nonlocal begun
        begun += 1
        if begun == order.streams and not all_begun.done():
            all_begun.set_result(None)

    def failed(why: str) -> None:
        if not all_begun.done():
            all_begun.set_exception(ConnectionError(why))

    before_kib = rss_kib(order.pid)
    streams: list[Holding] = []
    for _ in range(order.streams):
        _, stream = await loop.create_connection(lambda: Holding(content, one_begun, failed), "127.0.0.1", order.port)
        streams.append(stream)
    await asyncio.wait_for(all_begun, PATIENCE_S)
    since_s, before_us = time.monotonic(), cpu_us(order.pid)
    await asyncio.sleep(order.seconds)
    wall_s, used_us, after_kib = time.monotonic() - since_s, cpu_us(order.pid) - before_us, rss_kib(order.pid)
    gaps_ms = sorted(gap_ms for stream in streams for gap_ms in gaps(stream.came_s, since_s))
    for stream in streams:
        if stream.transport.is_closing():
            raise ConnectionError("a stream was cut while it was watched")
        stream.leaving = True
        stream.transport.close()
    return Found(
        cpu_us=used_us,
        wall_s=wall_s,
        rss_kib=(before_kib, after_kib),
        worst_ms=gaps_ms[-1] if gaps_ms else 0.0,
        usual_ms=statistics.median(gaps_ms) if gaps_ms else 0.0,
        events=len(gaps_ms),
    )


def gaps(came_s: list[float], since_s: float) -> list[float]:
    """Milliseconds between events, of those that came since then."""
    return [(after - before) * 1000 for before, after in itertools.pairwise(came_s) if before >= since_s]


async def main(order: Rounds | Held) -> Found:
    """What was ordered."""
    return await (rounds(order) if isinstance(order, Rounds) else held(order))


if __name__ == "__main__":
    wanted: Rounds | Held = ordered(Rounds | Held)  # type: ignore[arg-type]
    answer(uvloop.run(main(wanted)))
