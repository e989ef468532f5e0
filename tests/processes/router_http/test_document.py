"""The OpenAPI documents of both ports, and a router that does what they say to whatever they allow."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from router.schema import NEUTRAL, ChatBody, CompletionBody

CHECKS = [
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
UNHEALTHY = list(HealthCheck)
"""Large bodies are filtered slowly; that is no matter here."""


def asked(operation: Any, mode: GenerationMode, url: str, judged: list[Any]) -> set[int]:
    """The statuses that this operation answered with."""
    statuses: set[int] = set()

    @settings(max_examples=100, database=None, derandomize=True, suppress_health_check=UNHEALTHY)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        statuses.add(case.call_and_validate(base_url=url, checks=judged).status_code)

    ask()
    return statuses


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("admin", [False, True])
def test_what_the_document_allows_and_forbids_is_answered_as_it_says(serving, admin, mode, caplog):
    url = serving.admin_url if admin else serving.url
    document = schemathesis.openapi.from_dict(serving.get("/openapi.json", admin)[1])
    judged = CHECKS + ([negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])
    operations = [result.ok() for result in document.get_all_operations()]
    if mode is GenerationMode.NEGATIVE:
        operations = [operation for operation in operations if operation.body]  # nothing but a body can be wrong
    statuses = {operation.label: asked(operation, mode, url, judged) for operation in operations}
    if mode is GenerationMode.POSITIVE and not admin:
        good = {label for label, seen in statuses.items() if 200 in seen}
        assert good >= {"POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize"}
    assert statuses
    assert "Traceback" not in caplog.text


def test_the_document_has_every_field_with_its_bounds(serving):
    schemas = serving.get("/openapi.json")[1]["components"]["schemas"]
    for body in (ChatBody, CompletionBody):
        assert set(schemas[body.__name__]["properties"]) == set(body.__struct_fields__)
        assert not set(body.__struct_fields__) & {"min_tokens", "tools"}, "what is refused is not offered"
        assert schemas[body.__name__]["properties"]["model"]["enum"] == ["tiny"]
    bounds: dict[str, Any] = schemas["ChatBody"]["properties"]["temperature"]["anyOf"][0]
    assert (bounds["minimum"], bounds["maximum"]) == (0, 2)
    assert "min_tokens" in NEUTRAL


def test_the_document_has_every_status_that_a_completion_may_have(serving):
    paths = serving.get("/openapi.json")[1]["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        statuses = set(paths[path]["post"]["responses"])
        assert statuses == {
            "200", "400", "401", "403", "404", "408", "413", "415", "429", "500", "502", "503", "504",
        }  # fmt: skip
    for port in (False, True):
        for path, operations in serving.get("/openapi.json", admin=port)[1]["paths"].items():
            assert all("422" not in operation["responses"] for operation in operations.values()), path


def test_each_port_describes_its_own_routes(serving):
    data, admin = (set(serving.get("/openapi.json", admin=port)[1]["paths"]) for port in (False, True))
    assert {"/tokenize", "/detokenize", "/v1/models", "/version", "/readyz"} <= data
    assert {"/abort/{request_id}", "/health_generate", "/workers", "/transfers/{request_id}"} <= admin
    assert data & admin == {"/livez", "/readyz"}
