"""Images in messages: refused, or the same text for each of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridge.serve.images import IMAGE_TEXT
from tests.serve.running import Running

LINK, DATA = "https://example.com/secret.png", "data:image/png;base64,AAAA"
TEXT = {"type": "text", "text": IMAGE_TEXT}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
CASES = [
    ("/tokenize", "user", {"type": "image_url", "image_url": {"url": LINK, "detail": "low"}}),
    ("/tokenize", "tool", {"type": "image_url", "image_url": {"url": DATA}}),
    ("/v1/chat/completions", "user", {"type": "image_url", "image_url": {"url": DATA}}),
    ("/v1/responses", "user", {"type": "input_image", "image_url": LINK, "detail": "auto", "file_id": None}),
    ("/v1/responses", "tool", {"type": "input_image", "image_url": DATA}),
    ("/v1/responses/compact", "user", {"type": "input_image", "image_url": LINK}),
    ("/v1/messages/count_tokens", "user", {"type": "image", "source": {"type": "url", "url": LINK}}),
    (
        "/v1/messages",
        "tool",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ),
]


def body(path: str, role: str, part: dict[str, Any]) -> dict[str, Any]:
    """A request with two parts before a text: of a user, or of a tool's result."""
    if path.startswith("/v1/responses"):
        text = {"type": "input_text", "text": "Hi"}
        parts = [part, part, text]
        output = {"type": "function_call_output", "call_id": "call_1", "output": parts}
        user = [{"role": "user", "content": parts}]
        # The demo model's summary must not be empty, so it starts from a known prompt.
        return {"model": "demo", "input": user if role == "user" else [FUNCTION_CALL, output]}
    parts = [part, part, {"type": "text", "text": "Hi"}]
    messages: list[dict[str, Any]]
    if path.startswith("/v1/messages"):
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": parts}
        messages = [{"role": "user", "content": parts if role == "user" else [result]}]
        if role == "tool":
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [USE]}, *messages]
    else:
        messages = [{"role": role, "content": parts}]
        if role == "tool":
            messages[0]["tool_call_id"] = "call_1"
            messages.insert(0, {"role": "assistant", "tool_calls": [CALL]})
    most = {} if path in ("/tokenize", "/v1/messages/count_tokens") else {"max_tokens": 1}
    return {"model": "demo", "messages": messages, **most}


def prompt(path: str, found: dict[str, Any]) -> Any:
    """What a response says of its prompt."""
    usage = found.get("usage", found)
    names = ("tokens", "prompt_tokens", "input_tokens", "cache_read_input_tokens")
    counts = [usage[name] for name in names if name in usage]
    return counts if path == "/tokenize" else sum(counts)


@pytest.mark.parametrize(("path", "role", "part"), CASES)
def test_the_model_reads_a_text(tooled: Running, path: str, role: str, part: dict[str, Any]) -> None:
    kind = "input_text" if path.startswith("/v1/responses") else "text"
    shown, same = (tooled.client.post(path, json=body(path, role, each)) for each in (part, {**TEXT, "type": kind}))
    assert shown.status_code == same.status_code == 200, shown.text
    assert prompt(path, shown.json()) == prompt(path, same.json())
    assert shown.headers["x-images-replaced"] == "2" and "x-images-replaced" not in same.headers
    assert tooled.lines("request")[-2]["images_replaced"] == 2


@pytest.mark.parametrize(("path", "role", "part"), CASES)
def test_images_are_refused(served: Running, path: str, role: str, part: dict[str, Any]) -> None:
    response = served.client.post(path, json=body(path, role, part))
    assert response.status_code == 400 and "found an image" in response.json()["error"]["message"]
    assert "secret" not in response.text


@pytest.mark.parametrize("url", ["file:///etc/passwd", "data:text/html,a", "/a.png", ""])
def test_other_urls_are_refused(tooled: Running, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    response = tooled.client.post("/tokenize", json=body("/tokenize", "user", part))
    assert response.status_code == 400 and "a string that matches" in json.dumps(response.json())
