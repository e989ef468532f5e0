"""The routes of the data port. Thin: they name what there is; `answer` and `service` do the work."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from router.answer import Answer, read_body
from router.asked import model_not_found
from router.auth import Gate
from router.beginning import Beginning
from router.chat import Chat
from router.completions import Completions
from router.document import COMPUTES, READS_BODY, answers, describe, errors, takes
from router.edge import Edge, Errors, encoded, install
from router.format import Dialect
from router.front import Front
from router.health import health, version
from router.ports import Model
from router.schema import Body, ChatBody, CompletionBody
from router.service import Service
from router.shapes import ChatCompletion, Completion
from router.tokenize import DetokenizeBody, Text, TokenizeBody, Tokens, detokenize, tokenize

Shape = type[msgspec.Struct]


def build_app(service: Service, lifespan: Callable[[FastAPI], Any] | None = None) -> ASGIApp:
    """The data port."""
    app = FastAPI(
        title="Tandem", version=version(), lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    beginning, metrics = Beginning(service), service.metrics
    posts = {
        "/v1/chat/completions": _completion(app, beginning, "/v1/chat/completions", Chat(), ChatBody, ChatCompletion),
        "/v1/completions": _completion(app, beginning, "/v1/completions", Completions(), CompletionBody, Completion),
    }
    _conversion(app, beginning, "/tokenize", tokenize, TokenizeBody, Tokens)
    _conversion(app, beginning, "/detokenize", detokenize, DetokenizeBody, Text)
    model = {"id": service.model.name, "object": "model", "created": 0, "owned_by": "tandem"}

    @app.get("/v1/models", responses=errors(401))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}", responses=errors(401, 404))
    async def one_model(name: str) -> dict[str, Any]:
        if name != service.model.name:
            raise model_not_found(name, service.model.name)
        return model

    @app.get("/version")
    async def its_version() -> dict[str, str]:
        return {"version": version()}

    health(app, service)
    kinds = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ChatCompletion, Completion, Tokens, Text)
    describe(app, service.model.name, *kinds)
    app.add_middleware(Gate, keys=service.doors.clients)
    return Front(
        install(app, lambda status, seconds: metrics.answered(status)),
        {
            path: Edge(Gate(Errors(post, metrics.refused), service.doors.clients), metrics.ended)
            for path, post in posts.items()
        },
    )


def _completion(
    app: FastAPI, beginning: Beginning, path: str, dialect: Dialect, body: type[Body], whole: Shape
) -> Answer:
    post = Answer(beginning, dialect)
    described = {**answers(whole, *COMPUTES, streams=True), **takes(body)}

    @app.post(path, response_class=Response, summary=f"See {body.__name__}", name=body.__name__, **described)
    async def complete(request: Request) -> Response:
        return post

    return post


def _conversion(
    app: FastAPI,
    beginning: Beginning,
    path: str,
    read: Callable[[bytes, Model], Tokens | Text],
    body: Shape,
    whole: Shape,
) -> None:
    service, rules = beginning.service, beginning.service.rules
    described = {**answers(whole, *READS_BODY, 404, 500, 503, 504), **takes(body)}

    @app.post(path, response_class=Response, summary=f"See {body.__name__}", name=body.__name__, **described)
    async def convert(request: Request) -> Response:
        deadline = asyncio.get_running_loop().time() + rules.request_timeout_s
        with service.reading():
            payload = await read_body(request.scope, request.receive, rules.max_payload_bytes, rules.body_timeout_s)
        with service.admission(request.scope, request.receive):
            told = await beginning.read(read, payload or b"", deadline, request.scope)
        if isinstance(told, Tokens):
            told.max_model_len = max((route.context for route in service.dispatch.routes()), default=None)
        return encoded(told)
