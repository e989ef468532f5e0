"""One client's connection: uvicorn's protocol, one request at a time, with a limit on all that a client may send."""

import asyncio
import secrets
import socket
import sys
from collections.abc import Iterable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.edge import DISCARD_BYTES, DISCARD_S, answer
from router.errors import ApiError
from router.line import EXTENSION, Line

HEADER_BYTES = 16 * 1024
HEAD_S = 10.0
"""From the connection's begin, or the end of an answer, to the end of the next request's head."""
UNREAD_S = 30.0
"""For how long a closed connection waits for a client that reads nothing of what is still for it."""
WRITE_BUFFER_BYTES = 128 * 1024
KERNEL_BUFFER_BYTES = 64 * 1024  # Linux doubles it
"""Together 256 KiB on their way to one client; above this, writing waits for the client to read."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits of ours, and our error shape for what is no HTTP.

    A request that follows before the last one's answer has ended (pipelining) is not read: the connection closes after
    that answer. So a connection never has more than one request, and nothing waits in a queue.

    Nobody here speaks another protocol, so a request that offers one (Java's client does: `upgrade: h2c`) is answered
    as any other. httptools takes what follows such a head for the other protocol's; what describes its body is then
    told to another parser, which reads on from there.
    """

    _head_bytes = 0
    _unused_bytes = 0
    """Since the parser, which keeps what it has not understood, last made something of what came."""
    _deaf = False
    """Nothing that still comes is read; yet it is taken in, as a reset would destroy the answer on its way."""
    _close_at: float | None = None
    _timer: asyncio.TimerHandle | None = None
    """It finds out by itself that its time is another one now: most requests are over long before."""
    _timer_at = 0.0
    _left_bytes: int | None = None
    """What was on its way when the connection was closed, or last looked at since then."""
    _line: Line | None = None
    _data = b""
    """What the parser was given last."""
    _told_again = False
    """The head that the parser reads is known."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._close_in(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_at = None
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        if self._line is not None:
            self._line.lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._line is not None:
            self._line.resumed()

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        if self._deaf:
            if self._unused_bytes > DISCARD_BYTES:
                self.transport.abort()
            return
        self._data = data
        super().data_received(data)
        if self._unused_bytes > HEADER_BYTES and not self._deaf:
            self.send_400_response("a line that does not end")

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls it where the parser stopped: the error tells at which byte."""
        error = sys.exc_info()[1]
        assert isinstance(error, httptools.HttpParserUpgrade)
        rest = self._data[error.args[0] :]
        if body := _about_body(self.headers):
            self.parser = httptools.HttpRequestParser(self)
            self._told_again = True
            rest = b"POST / HTTP/1.1\r\n" + body + b"\r\n" + rest
        if rest:
            self._data = rest
            super().data_received(rest)

    def on_message_begin(self) -> None:
        if self._told_again:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            raise ValueError("one request at a time")
        super().on_message_begin()
        self._head_bytes = 0
        self._line = Line(self.transport, self.flow)
        self.scope["extensions"] = {EXTENSION: {"line": self._line}}

    def on_url(self, url: bytes) -> None:
        if not self._told_again:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._told_again:
            self._count(len(name) + len(value) + len(": \r\n"))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._told_again:
            self._told_again = False
            return
        self._close_at = None
        super().on_headers_complete()
        self.scope["extensions"][EXTENSION]["cycle"] = self.cycle
        if self.cycle is not None and self._line is not None:
            self.cycle.transport = cast(asyncio.Transport, self._line)  # it has all of one that is used

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and _about_body(self.headers):
            return  # it is still to come
        super().on_message_complete()
        self.flow.resume_reading()  # all that can still come is the end of the connection, and somebody waits for that

    def on_response_complete(self) -> None:
        """As uvicorn does, but that nothing waits in a pipeline, and that HEAD_S are the one limit."""
        self.server_state.total_requests += 1
        del self.scope["extensions"][EXTENSION]["cycle"]  # it knows its scope: garbage that would have to be collected
        if self._line is not None:
            self._line.flush()
        if not self.transport.is_closing():
            self.flow.resume_reading()
        self._close_in(HEAD_S)

    def send_400_response(self, msg: str) -> None:
        self._deaf = True
        self._unused_bytes = 0
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        error = ApiError(400, "invalid_http", f"this is no HTTP request, or its head is over {HEADER_BYTES} bytes")
        response = answer(error, **{"connection": "close", "x-request-id": f"{secrets.randbits(63):016x}"})
        head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(response.body))
        if self.transport.can_write_eof():  # not over TLS: there, `connection: close` says it
            self.transport.write_eof()
        self._close_in(DISCARD_S)

    def _count(self, more: int) -> None:
        self._unused_bytes = 0
        self._head_bytes += more
        if self._head_bytes > HEADER_BYTES:
            raise ValueError("the head of this request is too long")

    def _close_in(self, seconds: float) -> None:
        self._close_at = self.loop.time() + seconds
        if self._timer is not None and self._timer_at > self._close_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._arm(self._close_at)

    def _arm(self, at: float) -> None:
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._close_at is None:
            return
        if self._close_at > self._timer_at:
            self._arm(self._close_at)
            return
        left_bytes = self.transport.get_write_buffer_size()
        if self._left_bytes is not None and left_bytes >= self._left_bytes:
            self.transport.abort()
            return
        self._left_bytes = left_bytes
        self.transport.close()
        self._close_in(UNREAD_S)


def _about_body(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The lines of a head that say how long its body is; none: it has no body."""
    about = [header for header in headers if header[0] in (b"content-length", b"transfer-encoding")]
    return b"".join([b"%b: %b\r\n" % header for header in about])
