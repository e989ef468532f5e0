"""One client's connection: uvicorn's protocol, one request at a time, with a limit on all that a client may send."""

import asyncio
import secrets
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.edge import DISCARD_BYTES, DISCARD_S, answer
from router.errors import ApiError

HEADER_BYTES = 16 * 1024
HEAD_S = 10.0
"""From the connection's begin, or the end of an answer, to the end of the next request's head."""
WRITE_BUFFER_BYTES = 128 * 1024
KERNEL_BUFFER_BYTES = 64 * 1024  # Linux doubles it
"""Together 256 KiB on their way to one client; above this, writing waits for the client to read."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits of ours, and our error shape for what is no HTTP.

    A request that follows before the last one's answer has ended (pipelining) is not read: the connection closes after
    that answer. So a connection never has more than one request, and nothing waits in a queue.
    """

    _head_bytes = 0
    _unused_bytes = 0
    """Since the parser, which keeps what it has not understood, last made something of what came."""
    _deaf = False
    """Nothing that still comes is read; yet it is taken in, as a reset would destroy the answer on its way."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._close_in(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        if self._deaf:
            if self._unused_bytes > DISCARD_BYTES:
                self.transport.abort()
            return
        super().data_received(data)
        if self._unused_bytes > HEADER_BYTES and not self._deaf:
            self.send_400_response("a line that does not end")

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            raise ValueError("one request at a time")
        super().on_message_begin()
        self._head_bytes = 0
        self.scope["extensions"] = {"tandem.abort": {"abort": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._close_in(HEAD_S)
        super().on_response_complete()

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
        self.transport.write_eof()
        self._close_in(DISCARD_S)

    def _count(self, more: int) -> None:
        self._unused_bytes = 0
        self._head_bytes += more
        if self._head_bytes > HEADER_BYTES:
            raise ValueError("the head of this request is too long")

    def _close_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
