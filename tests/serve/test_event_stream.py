"""Streams of events without a socket: pings, clients that stall or leave, and errors."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Piece
from hybridge.serve import event_stream
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import DONE, EventStream, EventTemplate, event
from hybridge.serve.request_log import RequestLog


class Writer:
    def begin(self) -> bytes:
        return b""

    def write(self, batch: Sequence[Piece]) -> bytes:
        return batch[0].text.encode()

    def end(self) -> bytes:
        return DONE

    def fail(self, error: ApiError) -> bytes:
        return event(error.openai())


async def response(batches: AsyncIterator[Sequence[Piece]], send: Any, disconnects: Any = asyncio.Future) -> str:
    """Runs a stream with a send_timeout of 20 ms; returns its log."""
    log = io.StringIO()
    service = SimpleNamespace(settings=SimpleNamespace(send_timeout=0.02), log=RequestLog(False, log))
    request = SimpleNamespace(state=SimpleNamespace(request_id="a"), url=SimpleNamespace(path="/v1/completions"))

    async def receive() -> dict[str, str]:
        await disconnects()
        return {"type": "http.disconnect"}

    await EventStream(request, batches, Writer(), service)({}, receive, send)
    return log.getvalue()


async def pieces(*steps: Any) -> AsyncIterator[Sequence[Piece]]:
    for step in steps:
        if isinstance(step, str):
            yield [Piece(0, step, (1,))]
        elif isinstance(step, Exception):
            raise step
        else:
            await step


def test_a_stream_of_events_with_a_ping_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PING_SECONDS", 0.01)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        waits = asyncio.Event()

        async def send_and_wake(message: Any) -> None:
            await send(message)
            if message.get("body") == b": ping\n\n":
                waits.set()

        assert not await response(pieces("a", waits.wait(), "b"), send_and_wake)

    asyncio.run(run())
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream") and headers[b"cache-control"] == b"no-store"
    assert [message["body"] for message in sent[1:]] == [b"a", b": ping\n\n", b"b", DONE, b""]
    assert [message["more_body"] for message in sent[1:]] == [True] * 4 + [False]


@pytest.mark.parametrize("stalls_at", [b"a", b": ping\n\n"])
def test_a_client_that_stalls(stalls_at: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_PING_SECONDS", 0.01)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body"))
        if sent[-1] == stalls_at:
            await asyncio.Future()

    async def run() -> str:
        return await response(pieces("a", asyncio.Future(), "b"), send)

    assert '"stalled"' in asyncio.run(run())
    assert sent[-1] == stalls_at


def test_a_client_that_leaves() -> None:
    sent: list[Any] = []

    async def run() -> str:
        left = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message.get("body"))
            if sent[-1] == b"a":
                left.set()

        return await response(pieces("a", asyncio.Future()), send, left.wait)

    assert not asyncio.run(run()) and sent == [None, b"a"]


def test_an_error_is_the_last_event() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body"))

    assert not asyncio.run(response(pieces("a", EngineError("broken")), send))
    assert sent[1] == b"a" and b'"message":"broken"' in sent[2] and sent[3:] == [b""]


@pytest.mark.parametrize("text", ["", "sea", 'quote " and \\', "\n\u2028\x00\x7f", "\N{GRINNING FACE}", "\ufffd"])
def test_a_template_gives_the_bytes_of_the_whole_event(text: str) -> None:
    data = {"id": "a", "choices": [{"delta": {"content": "x"}, "logprobs": None}], "usage": None}
    template = EventTemplate(data, "choices", 0, "delta", "content")
    data["choices"][0]["delta"]["content"] = text  # type: ignore[index]
    assert template.event(text) == event(data)
