"""Sends spans to an OpenTelemetry collector over OTLP/HTTP. Its packages are an extra, imported when asked for."""

import logging
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from router.spans import Span
from tandem.core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

EXPORT_S = 5.0
"""For one request's spans to be taken."""
SERVICE = "tandem"

log = logging.getLogger("tandem.router")


class Parent(NamedTuple):
    """What a client's `traceparent` names: its trace, and its span that asked us."""

    trace: int
    span: int


class Exporter:
    """`send` blocks. For one thread."""

    def __init__(self, endpoint: str, instance: str) -> None:
        """`instance` tells routers apart. Raises ConfigError without the packages."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            text = f"--otlp-traces-endpoint needs packages that are not here ({error.name}): pip install 'tandem[otlp]'"
            raise ConfigError(text) from None
        self._resource = Resource({"service.name": SERVICE, "service.instance.id": instance})
        self._exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_S)

    def send(self, span: Span, parent: Parent | None) -> bool:
        """A whole request; False when the collector did not take it."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        trace = parent.trace if parent is not None else secrets.randbits(128) | 1
        spans = list(self._readable(span, trace, self._context(trace, parent.span) if parent is not None else None))
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Send no more."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _context(self, trace: int, span: int) -> "SpanContext":
        from opentelemetry.trace import SpanContext, TraceFlags

        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _readable(self, span: Span, trace: int, parent: "SpanContext | None") -> "Iterator[ReadableSpan]":
        """It, and all that lies within it."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanKind, Status, StatusCode

        own = self._context(trace, secrets.randbits(64) | 1)
        top = parent is None or span.name == "request"
        yield ReadableSpan(
            span.name,
            own,
            parent,
            self._resource,
            dict(span.about),
            kind=SpanKind.SERVER if top else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.failure) if span.failure else Status(StatusCode.OK),
            start_time=span.from_us * 1000,
            end_time=span.to_us * 1000,
            instrumentation_scope=InstrumentationScope(SERVICE),
        )
        for part in span.parts:
            yield from self._readable(part, trace, own)
