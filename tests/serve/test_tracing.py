"""Traces: the spans that a collector receives, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest

from hybridge import requirements
from hybridge.artifact.errors import HybridgeError, SettingError
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings
from tests.serve.running import running, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_traces_need_their_packages(demo: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(HybridgeError, match=r"this command needs the package opentelemetry\.sdk: pip install .*otel"):
        HttpServer(ServeSettings(port=0, otel_endpoint="http://localhost:4318"), [demo])


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "file:///tmp/x", "http://"])
def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(SettingError, match="otel_endpoint: expected a URL"):
        ServeSettings(otel_endpoint=endpoint)


class Collector(ThreadingHTTPServer):
    """Stores the request bodies that it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces" and isinstance(self.server, Collector)
        self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    if find_spec("opentelemetry.sdk") is None:
        pytest.skip("needs OpenTelemetry: pip install 'hybridge[otel]'")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def spans_of(collector: Collector) -> list[Any]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = [ExportTraceServiceRequest.FromString(body) for body in collector.bodies]
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.mark.slow
def test_a_collector_gets_spans_without_texts(demo: ModelSettings, collector: Collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    with running([demo], otel_endpoint=endpoint) as served:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        body = {"model": "demo", "prompt": "The white whale", "max_tokens": 9, "n": 2, "ignore_eos": True}
        answer = served.client.post("/v1/completions", json=body, headers=headers).json()
        served.events("/v1/chat/completions", messages=[{"role": "user", "content": "whale"}], max_tokens=3)
        served.refusal("/v1/completions", 400, prompt=1.5)
    spans = spans_of(collector)  # the server has sent all of them when it ends
    for text in ("whale", answer["choices"][0]["text"]):
        assert not any(text.encode() in body for body in collector.bodies)
    roots = [span for span in spans if span.name.startswith("POST")]
    root, other, refused = sorted(roots, key=lambda span: span.start_time_unix_nano)
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT) and root.trace_id != other.trace_id
    values = {each.key: each.value for each in root.attributes}
    assert root.name == "POST /v1/completions" and values["http.response.status_code"].int_value == 200
    assert values["hybridge.request_id"].string_value == "mine"
    for parent, new_tokens in ((root, 18), (other, 3)):
        queue, prefill, decode = [span for span in spans if span.parent_span_id == parent.span_id]
        assert (queue.name, prefill.name, decode.name) == ("queue", "prefill", "decode")
        assert queue.end_time_unix_nano == prefill.start_time_unix_nano < prefill.end_time_unix_nano
        assert prefill.end_time_unix_nano == decode.start_time_unix_nano < decode.end_time_unix_nano
        assert parent.start_time_unix_nano < queue.start_time_unix_nano < queue.end_time_unix_nano
        assert decode.end_time_unix_nano < parent.end_time_unix_nano + 10**7
        counted = {each.key: each.value.int_value for each in decode.attributes}
        assert counted["gen_ai.usage.output_tokens"] == new_tokens
    assert not any(span.parent_span_id == refused.span_id for span in spans)


@pytest.mark.slow
def test_an_unreachable_collector_delays_nothing(demo: ModelSettings, collector: Collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    collector.server_close()
    with running([demo], otel_endpoint=endpoint) as served:
        assert served.post("/v1/completions", prompt="The sea", max_tokens=2)["choices"]
    until(lambda: served.lines("tracing"))
