"""One OpenTelemetry trace per request, as a real collector's port receives it over OTLP/HTTP."""

import gzip
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cluster import Cluster
from fake_model import FAKE, LAYERS
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from streams import events, model_of, stream
from waiting import DEADLINE_S, eventually

PROMPT = [65] * 1100
CHUNKS = ["prefill tokens 0-512", "prefill tokens 1024-1100", "prefill tokens 512-1024"]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                packed = self.headers.get("content-encoding") == "gzip"
                keep(self.path, gzip.decompress(body) if packed else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _keep(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def whole(self, request_id: str) -> tuple[Span, list[Span]]:
        """The request's span and all of its trace, once it is here."""

        def find() -> Span | None:
            return next((span for span in list(self.spans) if about(span).get("tandem.request_id") == request_id), None)

        root = eventually(find, f"the trace of {request_id} comes")
        return root, [span for span in list(self.spans) if span.trace_id == root.trace_id]


def about(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def cluster(cluster_of: Any, collector: Collector) -> Cluster:
    return cluster_of(*FAKE, "--prefill-pp", "2", "--decode-pp", "2", "--otlp-traces-endpoint", collector.url)


def ask(cluster: Cluster, **headers: str) -> str:
    """The id of a request with an answer of 20 tokens."""
    body = {"model": model_of(cluster), "prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    url, sent = f"{cluster.url}/v1/completions", {"content-type": "application/json", **headers}
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), sent), timeout=DEADLINE_S
    ) as answer:
        answer.read()
        request_id: str = answer.headers["x-request-id"]
        return request_id


def test_a_trace_has_all_of_a_requests_way_through_router_prefill_and_decode(cluster: Cluster, collector: Collector):
    root, spans = collector.whole(ask(cluster, traceparent=PARENT))
    assert collector.services == {"tandem"}
    assert root.trace_id.hex() == PARENT.split("-")[1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert root.kind == Span.SpanKind.SPAN_KIND_SERVER
    assert root.status.code == Status.StatusCode.STATUS_CODE_OK
    assert about(root)["tandem.prompt_tokens"] == len(PROMPT)
    assert about(root)["tandem.tokens"] == 20
    (attempt,) = (span for span in spans if span.name == "attempt 1")
    assert attempt.parent_span_id == root.span_id
    assert (about(attempt)["tandem.prefill"], about(attempt)["tandem.decode"]) == ("p0", "d0")
    parts = [span for span in spans if span.parent_span_id == attempt.span_id]
    names = {span.name for span in parts}
    assert {"alloc", "bootstrap", "admit", "first token", "exposed transfer", "decode", *CHUNKS} <= names
    for rank in ("p0.0", "p0.1"):
        assert (
            sorted(span.name for span in parts if about(span).get("tandem.rank") == rank and span.name in CHUNKS)
            == CHUNKS
        )
    layers = {span.name for span in parts if span.name.startswith("transfer layer ")}
    assert layers == {f"transfer layer {layer}" for layer in range(LAYERS)}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert len({span.span_id for span in spans}) == len(spans)


def test_the_trace_of_a_client_that_left_says_so(cluster: Cluster, collector: Collector):
    with stream(cluster, {"prompt": [66] * 40, "max_tokens": 6000, "ignore_eos": True}) as response:
        request_id = response.headers["x-request-id"]
        next(events(response))
    root, _ = collector.whole(request_id)
    assert len(root.trace_id) == 16
    assert root.parent_span_id == b""
    assert (root.status.code, root.status.message) == (Status.StatusCode.STATUS_CODE_ERROR, "client_gone")
