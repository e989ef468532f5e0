"""The outermost layer of both ports: request ids, and error shapes."""

import asyncio
import contextlib
import logging
import secrets

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.errors import ApiError, internal

DISCARD_S = 2.0
DISCARD_BYTES = 16 * 1024 * 1024
"""What a client still sends after it was refused is taken in up to here: a connection that is closed over unread
bytes is reset, and the client never sees why."""

CODES = {404: "not_found", 405: "method_not_allowed"}

log = logging.getLogger("tandem.router")


class Edge:
    """Gives every request its id and turns whatever was not foreseen into a 500 with a fixed text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        rid = secrets.randbits(63)
        scope["state"]["rid"] = rid
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], (b"x-request-id", b"%016x" % rid)]}
            await send(message)

        try:
            return await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %016x failed inside the router", rid)
            if started:
                # The client must not take a cut answer for a whole one.
                abort(scope)
                return None
        return await answer(internal())(scope, receive, send_with_id)


def abort(scope: Scope) -> None:
    """Cut the client's connection now, whatever is still on its way."""
    scope["extensions"]["tandem.abort"]["abort"]()


def answer(error: ApiError, **headers: str) -> Response:
    """The error as a response. Where the body was not read to its end, the connection is of no more use."""
    kind: type[Response] = Response
    if error.status in (408, 413, 415):
        headers["connection"] = "close"
        kind = Parting
    return kind(error.body(), error.status, {**error.headers(), **headers}, "application/json")


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


def install(app: FastAPI) -> FastAPI:
    """Put the edge around an app."""
    app.add_middleware(Edge)
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
    return answer(ApiError(error.status_code, CODES.get(error.status_code, "refused"), text), **(error.headers or {}))
