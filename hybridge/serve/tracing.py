"""OpenTelemetry spans of requests: the times of queue, prefill and decode, without any text."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hybridge.artifact.version import __version__
from hybridge.serve.prompt_trace import PromptTrace
from hybridge.serve.request_log import RequestLog

_SECOND = 1_000_000_000
# Time limit of an export in seconds, also of the last one when the server stops.
_EXPORT_SECONDS = 5


class Tracing:
    """Sends spans to a collector from its own thread; if the collector is too slow, spans are dropped."""

    def __init__(self, endpoint: str, log: RequestLog) -> None:
        """endpoint: base URL of OTLP over HTTP. Environment variables OTEL_* set headers, sampler and resource."""
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=_EXPORT_SECONDS)
        resource = Resource.create({SERVICE_NAME: "hybridge"})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("hybridge.serve", __version__)
        self._parents = TraceContextTextMapPropagator()
        _log_errors(log)

    def record(
        self,
        headers: Mapping[str, str],
        name: str,
        began: int,
        status: int,
        attributes: Mapping[str, Any],
        prompts: Sequence[PromptTrace],
    ) -> None:
        """The spans of a request that ends now. headers: traceparent continues the client's trace. began: ns."""
        span = self._tracer.start_span(
            name, self._parents.extract(headers), SpanKind.SERVER, {**attributes}, start_time=began
        )
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(span)
        for prompt in prompts:
            _record_prompt(self._tracer, context, prompt)
        span.end(time.time_ns())

    def close(self) -> None:
        """Send the remaining spans and stop."""
        self._provider.shutdown()


def _record_prompt(tracer: Tracer, context: Any, prompt: PromptTrace) -> None:
    model = {"gen_ai.request.model": prompt.model}
    more = {
        "prefill": {"gen_ai.usage.input_tokens": prompt.prompt_tokens, "hybridge.cached_tokens": prompt.cached_tokens},
        "decode": {"gen_ai.usage.output_tokens": prompt.new_tokens},
    }
    moments = (0.0, prompt.queued, prompt.first_token, prompt.last_token)
    for name, start, end in zip(("queue", "prefill", "decode"), moments, moments[1:], strict=False):
        attributes: dict[str, Any] = {**model, **more.get(name, {})}
        span = tracer.start_span(name, context, attributes=attributes, start_time=prompt.began + int(start * _SECOND))
        span.end(prompt.began + int(max(start, end) * _SECOND))


class _LogHandler(logging.Handler):
    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("tracing", message=record.getMessage())


def _log_errors(log: RequestLog) -> None:
    """Write the exporter's errors to the server's log."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [_LogHandler(log)]
    logger.propagate = False
