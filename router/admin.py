"""The routes of the admin port: what operators see and do."""

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response

from router.answer import read_body
from router.auth import Gate
from router.beginning import Beginning
from router.cluster import cluster_view
from router.dashboard.pages import PATHS, ROOT, dashboard
from router.dashboard.picture import Picture
from router.document import COMPUTES, answers, describe, errors, takes
from router.edge import encoded, install
from router.explain import Explanation, dialect_of, explain
from router.health import health, version
from router.held import check_peer, held_pages
from router.metrics import gauges_of
from router.orders import KnobsBody, control_of, knobs_of
from router.probe import generate_once
from router.service import Service
from router.transfers import detail, overview
from router.workers import known_groups
from tandem.runtime.exposition import CONTENT_TYPE
from tandem.runtime.history import HeldPages, Transfer, Transfers
from tandem.runtime.overview import ClusterView

KNOBS_BYTES = 64 * 1024


def build_admin_app(service: Service) -> FastAPI:
    """The admin port."""
    app = FastAPI(title="Tandem admin", version=version(), docs_url=None, redoc_url=None, redirect_slashes=False)
    _groups(app, service)
    _requests(app, service)
    _transfers(app, service)
    dashboard(app, service)
    health(app, service)
    _metrics(app, service)
    describe(app, service.model.name, KnobsBody, HeldPages, Transfers, Transfer, Explanation, ClusterView, Picture)
    app.add_middleware(Gate, keys=service.doors.operators, admin=True, shown=PATHS | {ROOT})
    return install(app)


def _metrics(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
    async def metrics() -> Response:
        text = service.metrics.render(gauges_of(service.dispatch, len(service.turns.queue)), service.dispatch.requests)
        return Response(text, media_type=CONTENT_TYPE)


def _groups(app: FastAPI, service: Service) -> None:
    @app.get("/cluster", response_class=Response, **answers(ClusterView))
    async def cluster() -> Response:
        return encoded(await cluster_view(service))

    @app.get("/workers")
    async def workers() -> dict[str, Any]:
        return {"workers": known_groups(service.dispatch, asyncio.get_running_loop().time())}

    @app.post(
        "/workers/{group}/knobs", status_code=202, responses=errors(400, 404, 408, 413, 415, 503), **takes(KnobsBody)
    )
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

    @app.post("/workers/{group}/{order}", status_code=202, responses=errors(400, 404, 503))
    async def order(group: str, order: str, peer: str = "") -> dict[str, str]:
        told = control_of(order, peer)
        service.limits(group)
        if told.peer:
            await check_peer(service.membership.groups(), group, told.peer, service.rules.timer_scale)
        service.tell(group, told)
        return {"group": group, "order": order}


def _requests(app: FastAPI, service: Service) -> None:
    @app.get("/status")
    async def status() -> dict[str, Any]:
        return service.status()

    @app.get("/requests")
    async def requests() -> dict[str, int]:
        return {"open": len(service.requests), "admitted": service.admitted, "coming": service.coming}

    @app.post("/route/explain", response_class=Response, **answers(Explanation, 400, 404, 408, 413, 415, 504))
    async def route_explain(request: Request) -> Response:
        rules = service.rules
        deadline = asyncio.get_running_loop().time() + rules.request_timeout_s
        payload = await read_body(request.scope, request.receive, rules.max_payload_bytes, rules.body_timeout_s) or b""
        ask = await Beginning(service).read(dialect_of(payload).read, payload, deadline, request.scope)
        return encoded(explain(service.dispatch, ask))

    @app.post("/abort/{request_id}", responses=errors(400, 404))
    async def abort(request_id: str) -> dict[str, Any]:
        return {"request_id": request_id, "aborted": service.abort(request_id)}

    @app.get("/health_generate", responses=errors(*COMPUTES))
    async def health_generate(request: Request) -> dict[str, object]:
        return await generate_once(Beginning(service), request.state.rid)


def _transfers(app: FastAPI, service: Service) -> None:
    @app.get("/held", response_class=Response, **answers(HeldPages))
    async def held() -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        return encoded(await held_pages(groups, scale))

    @app.get("/transfers", response_class=Response, **answers(Transfers))
    async def transfers() -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        found = await overview(groups, scale, service.recalled.failure)
        return encoded(found)

    @app.get("/transfers/{request_id}", response_class=Response, **answers(Transfer, 400, 404))
    async def transfer(request_id: str) -> Response:
        groups, scale = service.membership.groups(), service.rules.timer_scale
        found = await detail(groups, request_id, scale, service.recalled.failure)
        return encoded(found)
