"""What both ports tell of the router itself: does its loop run, is there a route, which version is it."""

import importlib.metadata

from fastapi import FastAPI, Response

from router.document import errors
from router.edge import answer
from router.errors import shutting_down
from router.service import Service


def health(app: FastAPI, service: Service) -> None:
    """Two of the questions of health, on either port: does the loop run, and is there a route."""

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health", include_in_schema=False, response_model=None)  # what other servers of this kind call it
    @app.get("/readyz", response_model=None, responses=errors(503))
    async def readyz() -> Response | dict[str, str]:
        if service.draining:
            return answer(shutting_down())
        return {"status": "ready"} if service.ready() else answer(service.why_not_ready())


def version() -> str:
    """Of the installed package."""
    return importlib.metadata.version("tandem")
