"""The outermost layer of both ports: request ids, and error shapes."""

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.asked import CHOICES_MAX
from router.errors import ApiError, internal
from router.line import line_of

DISCARD_S = 2.0
DISCARD_BYTES = 16 * 1024 * 1024
"""What a client still sends after it was refused is taken in up to here: a connection that is closed over unread
bytes is reset, and the client never sees why."""

UNREAD_CODES = ("body_timeout", "request_too_large", "unsupported_media_type")
"""Of who is refused before its body was read."""
LABEL = re.compile(rb"[\x21-\x7e]{1,128}")
"""What a client may call its request; anything else is not repeated."""

OK, GONE = 200, 499
Ended = Callable[[int, float], None]

CODES = {404: "not_found", 405: "method_not_allowed"}

log = logging.getLogger("tandem.router")


def nobody(status: int, seconds: float) -> None:
    """For who need not hear."""


class Edge:
    """Gives every request its id and turns whatever was not foreseen into a 500 with a fixed text."""

    def __init__(self, app: ASGIApp, ended: Ended = nobody) -> None:
        """`ended` hears of each request, with its status and seconds; 499: there was no answer to who had left."""
        self._app = app
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.monotonic(), GONE

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            return await self._call(scope, receive, send_seen)
        finally:
            if status == GONE and line_of(scope).started:
                status = OK  # such an answer goes past ASGI's messages
            self._ended(status, time.monotonic() - began)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        rid = secrets.randbits(63) // CHOICES_MAX * CHOICES_MAX  # those that follow are its choices'
        scope["state"]["rid"] = rid
        own = scope["state"]["own"] = [(b"x-request-id", b"%016x" % rid)]
        if (label := label_of(scope)) is not None:
            scope["state"]["label"] = label.decode()
            own.append((b"x-client-request-id", label))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        try:
            return await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %016x failed inside the router", rid)
            if (line := line_of(scope)).started:
                # The client must not take a cut answer for a whole one.
                line.abort()
                return None
        return await answer(internal())(scope, receive, send_with_id)


class Errors:
    """Answers with the error that an app raises before its first byte. `refused` hears of it."""

    def __init__(self, app: ASGIApp, refused: Callable[[ApiError], None]) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ApiError as error:
            self._refused(error)
            await answer(error)(scope, receive, send)


def label_of(scope: Scope) -> bytes | None:
    """What the client calls its request, in its own x-request-id: a label for the logs, and no key to anything."""
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    return sent if sent is not None and LABEL.fullmatch(sent) else None


def answer(error: ApiError, **headers: str) -> Response:
    """The error as a response. Where the body was not read to its end, the connection is of no more use."""
    kind: type[Response] = Response
    if error.code in UNREAD_CODES:
        headers["connection"] = "close"
        kind = Parting
    return kind(error.body(), error.status, {**error.headers(), **headers}, "application/json")


def encoded(told: object, headers: Mapping[str, str] | None = None) -> Response:
    """Anything of msgspec's as a response."""
    return Response(msgspec.json.encode(told), OK, headers, "application/json")


class Parting(Response):
    """A whole answer at once, its end only when the client has had the time to read it instead of sending on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                await _discard(receive)
        await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    """Read a body to its end, or the client's, or as far as anybody can ask."""
    taken = 0
    while taken <= DISCARD_BYTES:
        message = await receive()
        taken += len(message.get("body", b""))
        if not message.get("more_body"):
            return


def install(app: FastAPI, ended: Ended = nobody) -> FastAPI:
    """Put the edge around an app."""
    app.add_middleware(Edge, ended=ended)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    return app


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path} does not exist here"
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if allowed := headers.get("allow"):
        text = f"{request.url.path} takes {allowed}, not {request.method}"
    return answer(ApiError(error.status_code, CODES.get(error.status_code, "refused"), text), **headers)
