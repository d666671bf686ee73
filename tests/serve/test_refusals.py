"""Bad requests get the right status and OpenAI's error, and disturb no other request."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.serve.conftest import MOST_TOKENS
from tests.serve.running import Running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "model": "none"}, 404, "model"),
        (COMPLETIONS, {"prompt": "a", "model": 5}, 400, "model"),
        (COMPLETIONS, {}, 400, "prompt"),
        (COMPLETIONS, {"prompt": []}, 400, None),
        (COMPLETIONS, {"prompt": [-1]}, 400, None),
        (COMPLETIONS, {"prompt": [1 << 20]}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [1] * (MOST_TOKENS + 1)}, 400, "prompt"),
        (COMPLETIONS, {"prompt": "a " * 4000}, 400, "prompt"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "7"}, 400, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "n": 10**9}, 400, "n"),
        (COMPLETIONS, {"prompt": ["a"] * 100, "n": 2}, 400, "n"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, 400, "best_of"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, 400, "suffix"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, 400, "temperature"),
        (COMPLETIONS, {"prompt": "a", "presence_penalty": 3}, 400, "presence_penalty"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"9999": 1}}, 400, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 200}, 400, "stop"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 65}, 400, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "nonsense": 1}, 400, "nonsense"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": USER, "top_logprobs": 2}, 400, "top_logprobs"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, 400, None),
        (CHAT, {"messages": [{"role": "king", "content": "x"}]}, 400, "messages.0.role"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 4000}]}, 400, "messages"),
        (CHAT, {"messages": USER, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "messages": USER}, 400, "prompt"),
        ("/v1/responses", {"input": [{"type": 5}]}, 400, "input.0"),
        ("/v1/responses", {"input": [{"type": "message", "role": "user"}]}, 400, "input.0.message.content"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens.0"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(served: Running, path: str, fields: dict[str, Any], status: int, param: str) -> None:
    error = served.refusal(path, status, **fields)
    if param is not None:
        assert error["param"] == param
    assert "expected" in error["message"] and "Traceback" not in error["message"]


def test_a_long_prompt_has_its_own_code(served: Running) -> None:
    assert served.refusal(COMPLETIONS, 400, prompt="a " * 4000)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1", b"", b"\xff\xfe", b"[" * 100_000, b'{"model":"demo","prompt":"\\ud800"}', b"null", b'{"a":NaN}'],
    ids=lambda body: str(len(body)),
)
def test_bytes_that_are_no_request(served: Running, body: bytes) -> None:
    response = served.client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("value", [b"NaN", b"1e999", b'"\\ud800"', b'{"\\ud800": 1}'])
def test_values_that_no_response_can_contain(served: Running, value: bytes) -> None:
    body = b'{"model":"demo","input":"a","tools":[{"type":"function","name":"f","parameters":{"default":%s}}]}' % value
    response = served.client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools.0.parameters"


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("metadata.a", b'"metadata":{"a":"\\ud800"}'),
        ("user", b'"user":"\\ud800"'),
        ("prompt_cache_key", b'"prompt_cache_key":"\\ud800"'),
        ("reasoning.effort", b'"reasoning":{"effort":"\\ud800"}'),
        ("input.0.message.phase", b'"input":[{"role":"user","content":"a","phase":"\\ud800"}]'),
        ("input.0", b'"input":[{"type":null,"role":"user","content":"a"}]'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_text_that_no_response_can_contain(served: Running, param: str, field: bytes) -> None:
    body = b'{"model":"demo","input":"a",%s}' % field
    response = served.client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param) and "expected" in error["message"]


@pytest.mark.parametrize("fields", [{"model": "x" * 10**6}, {"prompt": "a", "y" * 10**6: 1}])
def test_an_error_shows_little_of_a_long_text(served: Running, fields: dict[str, Any]) -> None:
    response = served.client.post(COMPLETIONS, json={"model": "demo", **fields})
    assert response.status_code in (400, 404) and len(response.content) < 3000


def test_unknown_paths_and_methods(served: Running) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", COMPLETIONS, 405), ("GET", "/v1/models/x", 404)):
        response = served.client.request(method, path)
        assert response.status_code == status and response.json()["error"]["message"]


CHUNKED = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 200_000, b"431"),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", b"431"),
        (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (CHUNKED + b"1;" + b"y" * 200_000, b"431"),
        (CHUNKED + b"0\r\nx: " + b"y" * 200_000, b"431"),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 60_000 + b"\r\n\r\n", b"200"),
    ],
    ids=["no end", "one field", "many fields", "URL", "chunk extension", "trailer", "small enough"],
)
def test_headers_are_bounded(served: Running, request_bytes: bytes, status: bytes) -> None:
    host, port = served.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request_bytes)
        assert connection.recv(1 << 16)[9:12] == status


def test_bytes_that_are_no_http_are_a_line_of_the_log(served: Running) -> None:
    host, port = served.server.url.removeprefix("http://").split(":")
    before = len(served.lines("connection"))
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
    assert [line["message"] for line in served.lines("connection")[before:]] == ["Invalid HTTP request received."]


def test_large_bodies_before_other_requests(served: Running) -> None:
    """Bytes of a body do not count as the header of the request that follows on the same connection."""
    body = b'{"model": "demo", "tokens": [' + b" " * 300_000 + b"5]}"
    head = b"POST /detokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    post = head + b"content-length: %d\r\n\r\n" % len(body) + body
    last = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: " + b"y" * 60_000 + b"\r\n\r\n"
    host, port = served.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(post + post + last)
        found = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert found.count(b"HTTP/1.1 200") == 3 and found.count(b"HTTP/1.1") == 3


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("127.1.2.3:8000", True),
        ("[::1]:8000", True),
        ("models.localhost", True),
        ("example.com", False),
        ("127.0.0.1.example.com:8000", False),
        ("10.0.0.1", False),
    ],
)
def test_without_keys_only_names_of_this_machine_are_accepted(served: Running, host: str, accepted: bool) -> None:
    """Else a web page whose name resolves to 127.0.0.1 could use the server of its visitor."""
    response = served.client.get("/v1/models", headers={"host": host})
    assert response.status_code == (200 if accepted else 403)


def test_forms_of_web_pages_are_no_requests(served: Running) -> None:
    body = b'{"model": "demo", "prompt": "The sea", "max_tokens": 1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = served.client.post(COMPLETIONS, content=body, headers={"content-type": kind})
        assert response.status_code == 400
