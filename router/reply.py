"""An answer of status 200, straight to its connection: ASGI's messages would be most of what writing it costs."""

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from router.line import EXTENSION, line_of

OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = b"connection: close\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def cycle_of(scope: Scope) -> RequestResponseCycle:
    """uvicorn's book of a request to a `Connection`."""
    cycle: RequestResponseCycle = scope["extensions"][EXTENSION]["cycle"]
    return cycle


def body_of(scope: Scope) -> bytes | None:
    """The body, if all of it is here already: it is taken. None: `receive` has it, part by part."""
    cycle = cycle_of(scope)
    if cycle.more_body or cycle.disconnected:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


class Reply:
    """Writes what uvicorn would, and leaves its book as it would. `head` is header lines, each with its line end.

    HTTP/1.0 gets no chunks, as uvicorn would send: such a client takes their lengths for text.
    """

    def __init__(self, scope: Scope) -> None:
        self._cycle = cycle_of(scope)
        self._line = line_of(scope)
        self._own: list[tuple[bytes, bytes]] = scope["state"]["own"]

    def whole(self, head: bytes, body: bytes) -> None:
        """All at once."""
        self._begin(head + b"content-length: %d\r\n" % len(body))
        self._end(body)

    def begin(self, head: bytes) -> None:
        """What follows are chunks, see `Line.write_chunk`."""
        self._line.chunked = self._cycle.scope["http_version"] != "1.0"
        self._begin(head + CHUNKED if self._line.chunked else head)

    def end(self, last: bytes) -> None:
        """The last chunk."""
        if self._line.chunked:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if last else b"0\r\n\r\n"
        self._end(last)

    def _begin(self, head: bytes) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        every = b"".join([b"%b: %b\r\n" % header for header in (*cycle.default_headers, *self._own)])
        self._line.write(b"".join((OK, every, head, b"\r\n" if cycle.keep_alive else CLOSE + b"\r\n")))

    def _end(self, data: bytes) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        cycle.response_complete = True
        self._line.write(data)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._line.close()
        cycle.on_response()
