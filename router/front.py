"""What the data port answers most goes past the framework, which only describes it."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Front:
    """An app, and beside it what answers a POST to some of its paths."""

    def __init__(self, app: ASGIApp, posts: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._posts = posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        post = self._posts.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (post or self._app)(scope, receive, send)
