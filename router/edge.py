"""The outermost layer of both ports: request ids, error shapes, and limits of a connection."""

import logging
import secrets
import socket
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.errors import ApiError, internal

HEADER_BYTES = 16 * 1024
WRITE_BUFFER_BYTES = 128 * 1024
KERNEL_BUFFER_BYTES = 64 * 1024  # Linux doubles it
"""Together 256 KiB on their way to one client; above this, writing waits for the client to read."""

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


class Connection(HttpToolsProtocol):
    """uvicorn's connection with three limits of ours, and our error shape for what is no HTTP."""

    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self.scope["extensions"] = {"tandem.abort": {"abort": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        error = ApiError(400, "invalid_http", f"this is no HTTP request, or its head is over {HEADER_BYTES} bytes")
        response = answer(error, **{"connection": "close", "x-request-id": f"{secrets.randbits(63):016x}"})
        head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(response.body))
        self.transport.close()

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > HEADER_BYTES:
            raise ValueError("the head of this request is too long")


def abort(scope: Scope) -> None:
    """Cut the client's connection now, whatever is still on its way."""
    scope["extensions"]["tandem.abort"]["abort"]()


def answer(error: ApiError, **headers: str) -> Response:
    """The error as a response. Where the body was not read to its end, the connection is of no more use."""
    if error.status in (408, 413, 415):
        headers["connection"] = "close"
    return Response(error.body(), error.status, {**error.headers(), **headers}, "application/json")


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
