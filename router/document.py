"""The OpenAPI documents of both ports: what FastAPI cannot see, as bodies and answers are msgspec types."""

from typing import Any

import msgspec
from fastapi import FastAPI

from router.schema import NEUTRAL_IN_MESSAGES
from router.shapes import Error

ERRORS = {
    400: "A field, or the body, is not what it must be",
    401: "No API key, or one that is not known",
    403: "This key may not do this",
    404: "There is no such thing here",
    408: "The body did not come in time, or no group was free in time",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "A limit is reached; see retry-after",
    500: "The router's own bug, or a request that has taken two groups down",
    502: "A group was lost, and retries are used up",
    503: "No group can take it now; see retry-after",
    504: "The deadline has passed",
}
"""What each status means; 499 is for the log alone."""

READS_BODY = (400, 401, 403, 408, 413, 415, 429)
COMPUTES = (*READS_BODY, 404, 500, 502, 503, 504)

Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """Answers in OpenAI's error shape."""
    return {status: {"description": ERRORS[status], "content": _json("Error")} for status in sorted(statuses)}


def answers(kind: type[msgspec.Struct], *statuses: int, streams: bool = False) -> dict[str, Any]:
    """What FastAPI is told of a route whose answer it does not make: the good one, and the errors."""
    content = _json(kind.__name__)
    if streams:
        content["text/event-stream"] = {"schema": {"description": "Chunks, and [DONE] at last"}}
    good = {"description": (kind.__doc__ or "").strip().split("\n")[0], "content": content}
    return {"responses": {200: good, **errors(*statuses)}}


def takes(body: type[msgspec.Struct]) -> dict[str, Any]:
    """And of its body."""
    return {"openapi_extra": {"requestBody": {"required": True, "content": _json(body.__name__)}}}


def describe(app: FastAPI, model: str, *kinds: type[msgspec.Struct]) -> None:
    """Have these types in the app's document. `model` is the only one that bodies may name."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = made()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # FastAPI's own; what is wrong with a body is a 400 here
        schemas = components(Error, *kinds)
        for schema in schemas.values():
            if schema.get("title", "").endswith("Body") and "model" in schema["properties"]:
                schema["properties"]["model"] = _only(model, schema["properties"]["model"])
        if "Message" in schemas:
            schemas["Message"] = _message(schemas["Message"])
        document["components"] = {"schemas": schemas}
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def components(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """Types as OpenAPI schemas, by name."""
    return msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")[1]


def _only(model: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Null stays possible where it was."""
    named = {"type": "string", "enum": [model]}
    return {**schema, "anyOf": [named, {"type": "null"}]} if "anyOf" in schema else named


def _message(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that are only read to be refused, and with its content, which one of them could replace."""
    properties = {name: each for name, each in schema["properties"].items() if name not in NEUTRAL_IN_MESSAGES}
    content = [each for each in properties["content"]["anyOf"] if each != {"type": "null"}]
    return {**schema, "properties": {**properties, "content": {"anyOf": content}}, "required": ["role", "content"]}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
