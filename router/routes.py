"""The routes of both ports. Thin: they name what there is; `answer` and `service` do the work."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from router.answer import Answer, read_body
from router.asked import model_not_found
from router.chat import Chat
from router.completions import Completions
from router.edge import answer, install
from router.errors import shutting_down
from router.format import Dialect
from router.held import check_peer, held_pages
from router.orders import KnobsBody, control_of, knobs_of
from router.schema import Body, ChatBody, CompletionBody, components
from router.service import Service
from router.transfers import detail, overview

KNOBS_BYTES = 64 * 1024


def build_app(service: Service, lifespan: Callable[[FastAPI], Any] | None = None) -> FastAPI:
    """The data port."""
    app = FastAPI(
        title="Tandem", version=version(), lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    _completion(app, service, "/v1/chat/completions", Chat(), ChatBody)
    _completion(app, service, "/v1/completions", Completions(), CompletionBody)
    model = {"id": service.model.name, "object": "model", "created": 0, "owned_by": "tandem"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != service.model.name:
            raise model_not_found(name, service.model.name)
        return model

    @app.get("/version")
    async def its_version() -> dict[str, str]:
        return {"version": version()}

    _health(app, service)
    _document(app, ChatBody, CompletionBody)
    return install(app)


def build_admin_app(service: Service) -> FastAPI:
    """The admin port."""
    app = FastAPI(title="Tandem admin", version=version(), docs_url=None, redoc_url=None, redirect_slashes=False)

    @app.get("/workers")
    async def workers() -> dict[str, Any]:
        return {"workers": service.workers()}

    content = {"application/json": {"schema": {"$ref": "#/components/schemas/KnobsBody"}}}

    @app.post("/workers/{group}/knobs", status_code=202, openapi_extra={"requestBody": {"content": content}})
    async def knobs(group: str, request: Request) -> dict[str, Any]:
        limits = service.limits(group)
        payload = await read_body(request.scope, request.receive, KNOBS_BYTES, service.rules.body_timeout_s)
        told = knobs_of(payload or b"", limits)
        service.tell(group, told)
        return {
            "group": group,
            "max_prefill_tokens": told.max_prefill_tokens,
            "chunked_prefill_size": told.chunked_prefill_size,
        }

    @app.post("/workers/{group}/{order}", status_code=202)
    async def order(group: str, order: str, peer: str = "") -> dict[str, str]:
        told = control_of(order, peer)
        service.limits(group)
        if told.peer:
            await check_peer(service.membership.groups(), group, told.peer, service.rules.timer_scale)
        service.tell(group, told)
        return {"group": group, "order": order}

    @app.get("/held")
    async def held() -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        return Response(msgspec.json.encode(await held_pages(groups, scale)), media_type="application/json")

    @app.get("/status")
    async def status() -> dict[str, Any]:
        return service.status()

    @app.get("/requests")
    async def requests() -> dict[str, int]:
        return {"open": len(service.requests), "admitted": service.admitted, "coming": service.coming}

    @app.get("/transfers")
    async def transfers() -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        return Response(msgspec.json.encode(await overview(groups, scale)), media_type="application/json")

    @app.get("/transfers/{request_id}")
    async def transfer(request_id: str) -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        return Response(msgspec.json.encode(await detail(groups, request_id, scale)), media_type="application/json")

    _health(app, service)
    _document(app, KnobsBody)
    return install(app)


def _completion(app: FastAPI, service: Service, path: str, dialect: Dialect, body: type[Body]) -> None:
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    content = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    @app.post(path, response_class=Response, openapi_extra=content, summary=f"See {body.__name__}", name=body.__name__)
    async def complete(request: Request) -> Response:
        return Answer(service, dialect)


def _health(app: FastAPI, service: Service) -> None:
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health", include_in_schema=False, response_model=None)  # what other servers of this kind call it
    @app.get("/readyz", response_model=None)
    async def readyz() -> Response | dict[str, str]:
        if service.draining:
            return answer(shutting_down())
        return {"status": "ready"} if service.ready() else answer(service.not_ready())


def _document(app: FastAPI, *bodies: type[msgspec.Struct]) -> None:
    """The bodies are msgspec types, which FastAPI cannot describe itself."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        document.setdefault("components", {}).setdefault("schemas", {}).update(components(*bodies))
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def version() -> str:
    """Of the installed package."""
    return importlib.metadata.version("tandem")
