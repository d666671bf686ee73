"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from json.encoder import JSONEncoder, encode_basestring
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hybridge.artifact.errors import EngineError
from hybridge.runtime.generation import Piece
from hybridge.serve.errors import ApiError, api_error

if TYPE_CHECKING:
    from hybridge.serve.service import Service

DONE = b"data: [DONE]\n\n"
# Proxies close connections that are silent for long.
_PING, _PING_SECONDS = b": ping\n\n", 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Marks the place of a template's text: no other part of an event has this character.
_TEXT = "\0"


class EventWriter(Protocol):
    """Writes the events of one response."""

    def begin(self) -> bytes:
        """The events before the first token."""

    def write(self, batch: Sequence[Piece]) -> bytes:
        """The events of new pieces."""

    def end(self) -> bytes:
        """The events after the last piece."""

    def fail(self, error: ApiError) -> bytes:
        """The events after an error, instead of ``end``."""


def event(data: Any, name: str | None = None) -> bytes:
    """One event with ``data`` as JSON, and perhaps a name."""
    line = f"data: {_ENCODER.encode(data)}\n\n"
    return (line if name is None else f"event: {name}\n{line}").encode()


class EventTemplate:
    """Events that differ in one text, so that only this text is encoded each time."""

    def __init__(self, data: dict[str, Any], *path: str | int) -> None:
        """``path`` leads to the text in the event's ``data``, which is changed."""
        inner: Any = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = _TEXT
        self._before, self._after = event(data).split(encode_basestring(_TEXT).encode())

    def event(self, text: str) -> bytes:
        """The event with ``text``."""
        return b"%b%b%b" % (self._before, encode_basestring(text).encode(), self._after)


class EventStream(StreamingResponse):
    """The events of ``writer`` as a response. An error after its beginning is the last event.

    It ends early when the client disconnects, or reads nothing for ``send_timeout`` seconds.
    """

    media_type = "text/event-stream"

    def __init__(
        self, request: Request, batches: AsyncIterator[Sequence[Piece]], writer: EventWriter, service: Service
    ) -> None:
        self._data = self._events(batches, writer)
        super().__init__(self._data, headers=_HEADERS)
        self._request, self._service = request, service
        # When the last event was sent, or the present one began to be sent (time of the event loop).
        self._since, self._sending = 0.0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writing = asyncio.ensure_future(self._send_all(send))
        disconnect = asyncio.ensure_future(disconnected(receive))
        try:
            if await self._ended_or_stalled({writing, disconnect}, send):
                # Without its end, the client sees that the stream is incomplete.
                self._service.log.write("stalled", request=self._request.state.request_id)
        finally:
            disconnect.cancel()
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing

    async def _ended_or_stalled(self, tasks: set[asyncio.Task[None]], send: Send) -> bool:
        """Wait for the first of ``tasks`` to end (False), or until the client has stalled (True)."""
        limit, time = float(self._service.settings.send_timeout), asyncio.get_running_loop().time
        self._since = time()
        while True:
            left = self._since + (limit if self._sending else _PING_SECONDS) - time()
            if left > 0:
                done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return False
            elif self._sending:
                return True
            else:
                try:
                    await asyncio.wait_for(send(_body(_PING)), limit)
                except asyncio.TimeoutError:
                    return True
                self._since = time()

    async def _send_all(self, send: Send) -> None:
        time = asyncio.get_running_loop().time
        async for data in self._data:
            self._since, self._sending = time(), True
            await send(_body(data))
            self._since, self._sending = time(), False
        await send(_body(b"", False))

    async def _events(self, batches: AsyncIterator[Sequence[Piece]], writer: EventWriter) -> AsyncIterator[bytes]:
        try:
            if begin := writer.begin():
                yield begin
            async for batch in batches:
                if data := writer.write(batch):
                    yield data
            yield writer.end()
        except Exception as error:
            if not isinstance(error, (ApiError, EngineError)):
                self._service.log.error("failed", error, request=self._request.state.request_id)
            yield writer.fail(api_error(error))


async def disconnected(receive: Receive) -> None:
    """Wait for the client's disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
