"""A client's connection, as one answer uses it: what happens to it, and writes that wait for nobody."""

import asyncio
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl

EXTENSION = "tandem.line"
CONTINUE = b"HTTP/1.1 100 "
"""The head of no answer yet: nothing follows it, so it does not wait."""


def nothing() -> None:
    """Nobody has to do anything."""


class Line:
    """Stands between uvicorn and the transport: the head of an answer waits for what follows, so both are one write.

    `resumed` is called when the client has read enough of what it was sent, after `paused`.
    """

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self._head: bytes | None = None  # until it has left
        self._gone = False
        self._on_gone = nothing
        self.chunked = True
        """HTTP/1.0 knows no chunks: there, the end of the connection is that of the body."""
        self.resumed: Callable[[], None] = nothing

    @property
    def gone(self) -> bool:
        """The client is."""
        return self._gone

    @property
    def started(self) -> bool:
        """The head of the answer was written."""
        return self._head is not None

    async def drain(self) -> None:
        """Wait until it is not paused, or the client has gone."""
        await self._flow.drain()

    @property
    def paused(self) -> bool:
        """So much is on its way to the client that a write would only pile up."""
        return self._flow.write_paused

    def write_chunk(self, body: bytes) -> None:
        """A part of a body whose length nobody knows, after its head was sent and before its end is."""
        self.write(b"%x\r\n%b\r\n" % (len(body), body) if self.chunked else body)

    def write(self, data: bytes) -> None:
        """The head of an answer, or what follows it."""
        if self._head is not None:
            data, self._head = self._head + data, b""
        elif not data.startswith(CONTINUE):
            data, self._head = b"", data
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        """Nothing follows the head."""
        if self._head:
            self.write(b"")

    def is_closing(self) -> bool:
        """Nothing can be written any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """After what was written has left."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Cut it now, whatever is still on its way."""
        self._transport.abort()

    def when_gone(self, do: Callable[[], None]) -> None:
        """Call this, and nothing else, when the client has gone: now, if it has."""
        self._on_gone = do
        if self._gone:
            do()

    def lost(self) -> None:
        """The client has gone, and nobody waits for it to read."""
        self._gone = True
        self._on_gone()
        self.resumed()


def line_of(scope: Scope) -> Line:
    """That of a request to a `Connection`."""
    line: Line = scope["extensions"][EXTENSION]["line"]
    return line
