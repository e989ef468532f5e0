"""One HTTP request from its first byte to its last: read the body, send the work, write what comes back."""

import asyncio
import logging
from collections.abc import Callable

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from router.edge import abort
from router.errors import ApiError
from router.exchange import Exchange
from router.format import PING, Dialect, Format
from router.service import Service
from router.stream import Failed, Finished
from tandem.core.ids import RequestId

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger("tandem.router")


class Answer(Response):
    """An ASGI response that does all the work when it is called, with the client's line at hand."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        super().__init__()
        self._service = service
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError before the first byte; after it, the error is the stream's last event."""
        rid: RequestId = scope["state"]["rid"]
        rules = self._service.rules
        deadline = asyncio.get_running_loop().time() + rules.request_timeout_s
        with self._service.reading():
            payload = await read_body(scope, receive, rules.max_payload_bytes, rules.body_timeout_s)
        if payload is None:
            return
        with self._service.admission():
            ask, exchange = await self._service.begin(self._dialect, payload, rid, deadline)
            gone = asyncio.create_task(_watch(receive, exchange.abandon))
            form = Format(self._dialect, rid, self._service.model.name, ask)
            try:
                await (self._stream if ask.streaming else self._whole)(exchange, form, scope, send)
            finally:
                exchange.abandon()
                gone.cancel()
                counts = (len(ask.prompt), exchange.count)
                route = exchange.attempt.route
                log.info("request %016x on %s: %d + %d tokens, %s", rid, route, *counts, outcome(exchange))

    async def _whole(self, exchange: Exchange, form: Format, scope: Scope, send: Send) -> None:
        await exchange.ended()
        if isinstance(exchange.end, Failed):
            return _raise_if_read(exchange.end.error)
        assert exchange.end is not None
        body = form.whole("".join(exchange.take()), exchange.end.reason, exchange.count)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._write(scope, send, {"type": "http.response.start", "status": 200, "headers": headers}, exchange)
        return await self._write(scope, send, {"type": "http.response.body", "body": body}, exchange)

    async def _stream(self, exchange: Exchange, form: Format, scope: Scope, send: Send) -> None:
        ping_s = self._service.rules.ping_s
        # Until the first news, or the first ping, a failure still has a status of its own.
        await exchange.news(ping_s)
        if isinstance(exchange.end, Failed):
            return _raise_if_read(exchange.end.error)
        start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        await self._write(scope, send, start, exchange)
        while True:
            end, texts = exchange.end, exchange.take()
            out = form.pieces(texts) if texts else b""
            if isinstance(end, Finished):
                out += form.closing(end.reason, exchange.count)
            elif isinstance(end, Failed):
                out += form.failing(end.error)
            body = {"type": "http.response.body", "body": out or PING, "more_body": end is None}
            await self._write(scope, send, body, exchange)
            if end is not None:
                return None
            await exchange.news(ping_s)

    async def _write(self, scope: Scope, send: Send, message: Message, exchange: Exchange) -> None:
        """Write, unless the client has not read for so long that its connection is worth no more memory."""
        try:
            async with asyncio.timeout(self._service.rules.stalled_write_s):
                await send(message)
        except TimeoutError:
            exchange.abandon()
            abort(scope)


def _raise_if_read(error: ApiError) -> None:
    """A client that is gone gets no answer, and needs none."""
    if error.status != 499:
        raise error


async def _watch(receive: Receive, gone: Callable[[], None]) -> None:
    """The body is complete: all that can still come is the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()


async def read_body(scope: Scope, receive: Receive, bytes_max: int, timeout_s: float) -> bytes | None:
    """The body; None when the client left. Raises ApiError 408, 413 or 415, and reads no further then."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError(415, "unsupported_media_type", "send the body as content-type application/json")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > bytes_max:
        raise _too_big(bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > bytes_max:
                    raise _too_big(bytes_max)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, "body_timeout", f"the body did not arrive within {timeout_s:g} s") from None


def _too_big(bytes_max: int) -> ApiError:
    return ApiError(413, "request_too_large", f"the body is larger than {bytes_max} bytes")


def outcome(exchange: Exchange) -> str:
    """How a request ended, in one word for the log."""
    match exchange.end:
        case None:
            return "client_gone"
        case Failed(error=error):
            return error.code
        case Finished(reason=reason):
            return reason
