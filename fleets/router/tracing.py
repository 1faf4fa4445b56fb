"""W3C trace context: a client's `traceparent` goes on to the engines; with `--tracing` the router's own spans stand between.

A span is one request, with a child for each phase of its TTFT and one for its stream. They are made when the request ends, from
the times that were measured anyway; only the ids are needed before. The exporter is OpenTelemetry's, set up by its own
variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from denvweb.core.errors import InvalidError
from fleets.router.telemetry import now

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from fleets.router.job import Job

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z", re.DOTALL)
_MISSING = "--tracing needs OpenTelemetry: pip install '.[tracing]' in denv's folder"


def trace_id_of(traceparent: bytes) -> str:
    """The trace id in a `traceparent`; empty when it is none."""
    found = _TRACEPARENT.match(traceparent)
    return found[1].decode() if found and found[1] != b"0" * 32 else ""


class Tracer:
    """Begins a span for each request, and writes it when the request is over."""

    def __init__(self, *, stage: str, provider: TracerProvider | None = None) -> None:
        """`provider`: where spans go; by default OTLP over HTTP. Raises InvalidError when OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise InvalidError(_MISSING, code="tracing-missing") from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._provider = provider or _otlp(stage)
        self._tracer = self._provider.get_tracer("denv.router")
        self._offset_ns = time.time_ns() - int(now() * 1e9)  # from the clock of measurements to that of spans

    def begin(self, job: Job) -> bytes:
        """Begin the request's span under the client's, if there is one; the `traceparent` for its legs."""
        carrier = {"traceparent": job.traceparent.decode("latin-1"), "tracestate": job.head.header(b"tracestate").decode("latin-1")}
        parent = self._propagator.extract(carrier)
        job.span = self._tracer.start_span(
            f"POST {job.head.path}", context=parent, kind=self._trace.SpanKind.SERVER, start_time=self._ns(job.start_s)
        )
        context = job.span.get_span_context()
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, int(context.trace_flags))

    def end(self, job: Job) -> None:
        """The request is over: its span ends, with a child for each phase that was seen."""
        span: Span | None = job.span
        if span is None:
            return
        span.set_attributes(_attributes(job))
        if job.error:
            span.set_status(self._trace.StatusCode.ERROR, job.error)
        inside = self._trace.set_span_in_context(span)
        ended_s = now()
        for name, start_s, end_s in _phases(job, ended_s):
            self._tracer.start_span(name, context=inside, start_time=self._ns(start_s)).end(self._ns(end_s))
        span.end(self._ns(ended_s))
        job.span = None

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()

    def _ns(self, at_s: float) -> int:
        return int(at_s * 1e9) + self._offset_ns


def _otlp(stage: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidError(_MISSING, code="tracing-missing") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "denv-router", "denv.stage": stage}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _phases(job: Job, ended_s: float) -> list[tuple[str, float, float]]:
    """Name, start and end of each phase that the request went through."""
    first_s = job.first_s
    times = [
        ("queue", job.start_s, job.queued_s),
        ("prefill", job.queued_s, job.prefill_s),
        ("kv-transfer", job.prefill_s, job.head_s),
        ("first-step", job.head_s, first_s),
        ("stream", first_s, ended_s),
    ]
    return [(name, start_s, end_s) for name, start_s, end_s in times if start_s is not None and end_s is not None]


def _attributes(job: Job) -> dict[str, Any]:
    key, usage = (job.series.key if job.series is not None else None), job.usage
    found: dict[str, Any] = {
        "http.request.method": "POST", "url.path": job.head.path, "http.response.status_code": job.status,
        "gen_ai.request.model": job.ask.model, "denv.request_id": job.request_id.decode("latin-1"), "denv.reason": str(job.reason),
    }  # fmt: skip
    if key is not None:
        found |= {"denv.unit": key.unit, "denv.release": key.decode_release, "denv.route": str(key.route.value)}
    if usage is not None:
        found |= {"gen_ai.usage.input_tokens": usage.prompt, "gen_ai.usage.output_tokens": usage.completion}
    return found
