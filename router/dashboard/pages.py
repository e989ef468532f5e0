"""The routes of the page: its files, which anybody may have, and what they show, which asks for the operator's key."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from router.dashboard.hub import Hub
from router.dashboard.picture import Picture, picture
from router.dashboard.watch import Watch
from router.document import answers
from router.edge import encoded
from router.line import line_of
from router.service import Service

ROOT = "/"
HOME = "/dashboard"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What else lies beside the page's files, such as licences, is not served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but the page's own files, and nobody else's frame."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
NOT_STORED = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def assets() -> dict[str, tuple[bytes, str]]:
    """The page's files, by path: content and media type."""
    root = files("router.dashboard") / "static"
    found = {f"{HOME}/{name}": (each.read_bytes(), KINDS[PurePosixPath(name).suffix]) for name, each in _walk(root, "")}
    return {HOME: found.pop(f"{HOME}/index.html"), **found}


def _walk(folder: Traversable, under: str) -> list[tuple[str, Traversable]]:
    found = []
    for each in folder.iterdir():
        name = f"{under}{each.name}"
        if each.is_dir():
            found += _walk(each, f"{name}/")
        elif PurePosixPath(name).suffix in KINDS:
            found.append((name, each))
    return found


PATHS = frozenset(assets())
"""What a browser may have before anybody has shown a key: it cannot send one with a page's files."""


def dashboard(app: FastAPI, service: Service) -> None:
    """Serve the page, its stream of events, and pictures of single requests."""
    for path, (content, kind) in assets().items():
        _file(app, path, content, kind)

    @app.get(ROOT, include_in_schema=False)
    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)  # a program that has lost its way
        return RedirectResponse(HOME)

    hub = Hub(Watch(service).snapshot, service.over)

    @app.get(f"{HOME}/events", include_in_schema=False)  # the page's own, and without an end
    async def events(request: Request) -> Response:
        hub.check()
        stream = hub.stream(line_of(request.scope).abort)
        return StreamingResponse(stream, media_type="text/event-stream", headers=NOT_STORED)

    @app.get(f"{HOME}/requests/{{request_id}}", response_class=Response, **answers(Picture, 400, 404))
    async def request(request_id: str) -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        drawn = await picture(groups, request_id, scale, service.recalled)
        return encoded(drawn, NOT_STORED)


def _file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, headers={**HEADERS, "content-type": kind})
