"""/v1/responses over a WebSocket: the server answers each message as it answers a request for a stream."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridge.serve.errors import ApiError
from hybridge.serve.json_size import check_values
from hybridge.serve.stored_responses import ConnectionTurns

if TYPE_CHECKING:
    from hybridge.serve.service import Service

PATH = "/v1/responses"
_CONNECTION_SECONDS = 3600.0
# Fields of a request that only HTTP has.
_HTTP_FIELDS = ("stream", "stream_options", "background")
# Headers of the handshake that its requests do not repeat.
_OWN_HEADERS = frozenset((b"content-length", b"content-type", b"transfer-encoding", b"x-request-id"))
_STALLED = "the client reads nothing"
_NORMAL, _GOING_AWAY, _FAILED = 1000, 1001, 1011


class ResponseSocket:
    """One connection. It takes a message at a time, and passes it to ``app`` as an HTTP request for a stream.

    It is closed after an hour, and when the server shuts down, but never during an answer.
    """

    def __init__(self, app: ASGIApp, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._service, self._scope, self._receive = app, service, scope, receive
        self._send, self._unlimited_send = _in_time(send, service.settings.send_timeout), send
        self._turns, self._log = ConnectionTurns(), scope.setdefault("state", {}).setdefault("log", {})
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Answer messages until the connection ends, or the client reads nothing for ``send_timeout`` seconds.

        A connection that the client did not close is logged with the reason.
        """
        try:
            await self._run()
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._log.setdefault("disconnect", str(error))
        if self._log:
            self._service.log.write("socket lost", **self._log)

    async def _run(self) -> None:
        await self._receive()
        await self._send({"type": "websocket.accept"})
        self._service.on_drain.add(self._draining.set)
        if self._service.draining:  # since the handshake was checked
            self._draining.set()
        drain = asyncio.ensure_future(self._draining.wait())
        # The next message is read during an answer, so that a disconnect ends it.
        following = asyncio.ensure_future(self._receive())
        time = asyncio.get_running_loop().time
        end = time() + _CONNECTION_SECONDS
        try:
            while True:
                left = max(0.0, end - time())
                await asyncio.wait({drain, following}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if drain.done():
                    return await self._close(_GOING_AWAY)
                if not following.done() or time() >= end:
                    limit = ApiError(
                        400,
                        f"expected a connection of at most {_CONNECTION_SECONDS / 60:g} minutes: open a new one",
                        code="websocket_connection_limit_reached",
                    )
                    await self._send(_error_message(limit.status_code, limit.openai()["error"]))
                    return await self._close(_NORMAL)
                message = following.result()
                if message["type"] == "websocket.disconnect":
                    return
                following = asyncio.ensure_future(self._receive())
                if not await self._answer(message, following):
                    return await self._close(_FAILED)
        finally:
            self._service.on_drain.discard(self._draining.set)
            drain.cancel()
            following.cancel()

    async def _answer(self, message: Message, following: asyncio.Task[Message]) -> bool:
        """Answer ``message``; False if the client stopped reading."""
        try:
            body = _request(message)
        except ApiError as error:
            await self._send(_error_message(error.status_code, error.openai()["error"]))
            return True
        # The event stream of the answer has the same limit of time.
        exchange = _Exchange(self._unlimited_send, self._send, following, json.dumps(body).encode())
        await self._app(self._http_scope(), exchange.receive, exchange.send)
        if exchange.failed:
            self._turns.forget(body.get("previous_response_id"))
        if exchange.stalled:
            self._log.setdefault("disconnect", _STALLED)
        return exchange.complete and not exchange.stalled

    async def _close(self, code: int) -> None:
        await self._send({"type": "websocket.close", "code": code})

    def _http_scope(self) -> Scope:
        given = self._scope
        headers = [each for each in given["headers"] if each[0].lower() not in _OWN_HEADERS]
        same = ("asgi", "http_version", "server", "client", "root_path", "path", "raw_path", "query_string")
        return {
            **{name: given[name] for name in same if name in given},
            "type": "http",
            "scheme": "http",
            "method": "POST",
            "headers": [*headers, (b"content-type", b"application/json")],
            "state": {"turns": self._turns},
        }


class _Exchange:
    """The HTTP request of one message, and its response as messages: events by ``send``, a refusal by ``refuse``.

    failed: it ended in an error. stalled: the client did not read the refusal.
    """

    def __init__(self, send: Send, refuse: Send, following: asyncio.Task[Message], body: bytes) -> None:
        self._send, self._refuse, self._following, self._body = send, refuse, following, [body]
        self._status, self._text = 0, b""
        self._disconnected = asyncio.Event()
        self.failed = self.complete = self.stalled = False

    async def receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await asyncio.wait({self._following})
        if self._following.result()["type"] != "websocket.disconnect":
            # The client has sent its next message. From now on, sending detects a disconnect.
            await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._text += message.get("body", b"")
        self.complete = not message.get("more_body", False)
        if self._status == 200:
            *events, self._text = self._text.split(b"\n\n")
            for event in events:
                await self._send_event(event.decode())
        elif self.complete:
            self.failed = True
            if not self._text:
                return  # the client has disconnected
            await self._pass(_error_message(self._status, json.loads(self._text)["error"]), self._refuse)

    async def _send_event(self, event: str) -> None:
        """Pings and [DONE] are HTTP's own; the event after an error repeats it."""
        _, found, data = event.partition("data: {")
        if not found or self.failed:
            return
        if event.startswith("event: error\n"):
            error = json.loads("{" + data)
            self.failed = True
            await self._pass(_error_message(error["status"], error["error"]), self._send)
        else:
            await self._pass({"type": "websocket.send", "text": "{" + data}, self._send)

    async def _pass(self, message: Message, send: Send) -> None:
        try:
            await send(message)
        except OSError as error:
            self.stalled = isinstance(error, TimeoutError)
            self._disconnected.set()


def _in_time(send: Send, seconds: float) -> Send:
    """``send`` that fails with OSError after ``seconds``, as it does when the client has disconnected."""

    async def limited(message: Message) -> None:
        try:
            await asyncio.wait_for(send(message), seconds)
        except asyncio.TimeoutError:
            raise TimeoutError(_STALLED) from None

    return limited


def _request(message: Message) -> dict[str, Any]:
    """The body of the request for a stream that ``message`` describes; ApiError for anything else."""
    given = message.get("text") or message.get("bytes") or b""
    check_values(given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given)
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        raise ApiError(400, "expected a message of JSON, found another: correct it") from None
    if not isinstance(found, dict) or found.get("type") != "response.create":
        raise ApiError(400, 'type: expected "response.create", found another: correct it', param="type")
    for name in _HTTP_FIELDS:
        if name in found:
            raise ApiError(400, f"{name}: expected no such field over a WebSocket: leave it out", param=name)
    del found["type"]
    return {**found, "stream": True}


def _error_message(status: int, error: dict[str, Any]) -> Message:
    """An error of OpenAI's shape, always with a code."""
    shown = {"type": "error", "status": status, "error": {**error, "code": error["code"] or error["type"]}}
    return {"type": "websocket.send", "text": json.dumps(shown)}
