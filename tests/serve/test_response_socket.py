"""/v1/responses over a WebSocket, at the application's own interface: the socket itself is uvicorn's."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.serve import response_socket
from hybridge.serve.api_keys import ApiKeys, Client
from hybridge.serve.middleware import RequestMiddleware
from hybridge.serve.stored_responses import StoredResponse
from tests.serve.running import PATIENCE, Running, until

QUESTION = "What is the sea?"
CREATE = {"type": "response.create", "model": "demo", "max_output_tokens": 6, "store": False}


class Socket:
    """A connection to the application in the server's event loop."""

    def __init__(self, running: Running) -> None:
        self.sent: queue.Queue[Any] = queue.Queue()
        self._loop = running.server._event_loop
        self._given: asyncio.Queue[Any] = asyncio.Queue()
        self._put({"type": "websocket.connect"})

        async def send(message: Any) -> None:
            self.sent.put(message)

        app: Any = running.server._server.config.app
        self.ended = asyncio.run_coroutine_threadsafe(app(scope(), self._given.get, send), self._loop)
        assert self.next() == {"type": "websocket.accept"}

    def _put(self, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._given.put_nowait, message)

    def create(self, **fields: Any) -> None:
        self.text(json.dumps({**CREATE, **fields}))

    def text(self, text: str) -> None:
        self._put({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self._put({"type": "websocket.disconnect", "code": 1000})

    def next(self) -> Any:
        return self.sent.get(timeout=PATIENCE)

    def events(self) -> list[Any]:
        """The events of one answer."""
        found: list[Any] = []
        while not found or found[-1]["type"] not in ("response.completed", "response.incomplete", "error"):
            found.append(json.loads(self.next()["text"]))
        return found

    def error(self, **fields: Any) -> Any:
        self.create(**fields)
        (found,) = self.events()
        return found


def scope(path: str = "/v1/responses", headers: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    given = [(b"host", b"localhost:1"), (b"content-length", b"0"), *headers]
    return {"type": "websocket", "path": path, "headers": given, "query_string": b""}


@contextmanager
def connected(running: Running) -> Iterator[Socket]:
    socket = Socket(running)
    yield socket
    socket.leave()
    socket.ended.result(PATIENCE)


def test_answers_are_those_of_http_and_continue_without_being_stored(served: Running) -> None:
    def texts(events: Sequence[Any]) -> str:
        return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")

    with connected(served) as socket:
        socket.create(input=QUESTION)
        events = socket.events()
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        socket.create(input="And?", previous_response_id=events[-1]["response"]["id"])
        continued = socket.events()
        first = events[-1]["response"]
        history = [
            {"role": "user", "content": QUESTION},
            *first["output"],
            {"role": "user", "content": "And?"},
        ]
        for found, given in ((events, QUESTION), (continued, history)):
            whole = served.post("/v1/responses", input=given, max_output_tokens=6)
            assert whole["output"][0]["content"][0]["text"] == texts(found)
            assert whole["usage"]["input_tokens"] == found[-1]["response"]["usage"]["input_tokens"]
        lost = {"input": "And?", "previous_response_id": first["id"]}
        assert socket.error(**lost)["error"]["code"] == "previous_response_not_found"
        last = continued[-1]["response"]["id"]
        missing = [{"type": "function_call_output", "call_id": "none", "output": "1"}]
        failed = socket.error(input=missing, previous_response_id=last)
        assert failed["status"] == 400 and failed["error"]["code"] == "invalid_request_error"
        assert socket.error(input="And?", previous_response_id=last)["status"] == 404
    with connected(served) as other:
        other.create(input="Hi")
        assert other.events()[-1]["type"] == "response.incomplete"


def test_messages_that_are_no_request_are_refused(served: Running) -> None:
    with connected(served) as socket:
        for text in ("", "{", "[]", '{"type": "response.cancel"}', "[" * 100_000):
            socket.text(text)
            assert socket.events()[0]["status"] == 400
        for field in ({"stream": True}, {"background": False}, {"foo": 1}):
            assert socket.error(input="Hi", **field)["error"]["param"] in field
        assert socket.error(input="Hi", model="other")["status"] == 404
        socket.create(input="Hi")
        socket.create(input="Hi")  # waits for the first answer
        assert [socket.events()[-1]["type"] for _ in range(2)] == ["response.incomplete"] * 2


@pytest.mark.parametrize("waits", [False, True])
def test_a_disconnect_ends_the_answer(served: Running, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = Socket(served)
    socket.create(input="Tell me all.", max_output_tokens=1500)
    while "delta" not in json.loads(socket.next()["text"]):
        pass
    if waits:  # the disconnect is then seen by sending
        socket.create(input="Hi")

        def gone(message: Any) -> None:
            raise OSError

        monkeypatch.setattr(socket.sent, "put", gone)
    socket.leave()
    until(lambda: not served.model().running)
    monkeypatch.undo()
    socket.leave()
    socket.ended.result(PATIENCE)


def test_a_disconnect_before_the_answer_is_no_failure(served: Running) -> None:
    before = len(served.lines("failed"))
    socket = Socket(served)
    socket.create(input="Hi")
    socket.leave()
    socket.ended.result(PATIENCE)
    assert len(served.lines("failed")) == before


def test_a_connection_ends_when_the_server_drains_and_after_an_hour(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = Socket(served)
    socket.create(input="Hi")
    socket.next()
    (drain,) = served.server.service.on_drain
    served.server._event_loop.call_soon_threadsafe(drain)
    assert socket.events()[-1]["type"] == "response.incomplete"
    assert socket.next() == {"type": "websocket.close", "code": 1001}
    socket.ended.result(PATIENCE)
    monkeypatch.setattr(response_socket, "_CONNECTION_SECONDS", 0.0)
    late = Socket(served)
    assert late.events()[0]["error"]["code"] == "websocket_connection_limit_reached"
    assert late.next() == {"type": "websocket.close", "code": 1000}


@pytest.mark.parametrize(
    ("given", "keys", "draining", "status"),
    [
        (scope("/v1/models"), None, False, 404),
        (scope(headers=[(b"origin", b"http://evil.example")]), None, False, 403),
        ({**scope(), "headers": [(b"host", b"evil.example")]}, None, False, 403),
        (scope(), ApiKeys({"": Client("ann", "a")}), False, 401),
        (scope(), None, True, 503),
    ],
)
def test_refused_connections(given: Any, keys: Any, draining: bool, status: int) -> None:
    service = SimpleNamespace(
        keys=keys, local_only=keys is None, draining=draining, log=SimpleNamespace(write=lambda *_, **__: None)
    )
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(RequestMiddleware(None, service)(given, None, send))
    assert sent[0]["type"] == "websocket.http.response.start" and sent[0]["status"] == status


def test_a_server_that_drains_during_the_handshake_closes_the_connection() -> None:
    service: Any = SimpleNamespace(draining=False, on_drain=set(), settings=SimpleNamespace(send_timeout=60))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        service.draining = True

    async def run() -> None:
        given: asyncio.Queue[Any] = asyncio.Queue()
        given.put_nowait({"type": "websocket.connect"})
        app: Any = None
        socket = response_socket.ResponseSocket(app, service, {}, given.get, send)
        await asyncio.wait_for(socket.run(), PATIENCE)

    asyncio.run(run())
    assert sent == ["websocket.accept", "websocket.close"]


def test_stored_responses_keep_unpaired_surrogates() -> None:
    stored = StoredResponse({"id": "a"}, [], [{"role": "assistant", "arguments": {"text": "\ud800é"}}])
    assert StoredResponse.from_json(stored.to_json()) == stored


@pytest.mark.parametrize("refused", [b"{}", b"["])
def test_a_client_that_reads_no_refusal(refused: bytes) -> None:
    lines: list[Any] = []
    log = SimpleNamespace(write=lambda event, **fields: lines.append((event, fields)))
    service: Any = SimpleNamespace(draining=False, on_drain=set(), settings=SimpleNamespace(send_timeout=0.01), log=log)
    given = [{"type": "websocket.connect"}, {"type": "websocket.receive", "bytes": refused}]
    given[1:1] = [{"type": "websocket.receive", "text": json.dumps(CREATE)}] if refused == b"{}" else []

    async def receive() -> Any:
        return given.pop(0) if given else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400})
        await send({"type": "http.response.body", "body": b'{"error": {"code": null, "type": "a"}}'})

    socket = response_socket.ResponseSocket(app, service, {"headers": []}, receive, send)
    asyncio.run(asyncio.wait_for(socket.run(), PATIENCE))
    assert not service.on_drain and lines == [("socket lost", {"disconnect": "the client reads nothing"})]
