"""Server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus, SendTimeoutError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from hybridge.artifact.errors import EngineError
from hybridge.serve.errors import ANTHROPIC_PATH, ApiError, api_error

if TYPE_CHECKING:
    from hybridge.serve.service import Service

# A server that shuts down lets streams end by themselves (``ServeSettings.drain_timeout``).
AppStatus.disable_automatic_graceful_drain()
DONE = b"data: [DONE]\n\n"
_PING = ServerSentEvent(comment="ping", sep="\n")


def event(data: Any, name: str | None = None) -> bytes:
    """One event with ``data`` as JSON, and perhaps a name."""
    line = "data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n\n"
    return (line if name is None else f"event: {name}\n{line}").encode()


class EventStream(EventSourceResponse):
    """The ``events`` as a response. An error after its beginning is the last event.

    A client that reads nothing for ``send_timeout`` seconds is disconnected.
    """

    def __init__(self, request: Request, events: AsyncIterator[bytes], service: Service) -> None:
        self._request, self._service = request, service
        super().__init__(
            self._guarded(events),
            sep="\n",
            ping_message_factory=lambda: _PING,
            send_timeout=service.settings.send_timeout,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (SendTimeoutError, ClientDisconnect):
            # Without its end, the client sees that the stream is incomplete.
            self._service.log.write("stalled", request=self._request.state.request_id)

    async def _guarded(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for each in events:
                yield each
        except Exception as error:
            if not isinstance(error, (ApiError, EngineError)):
                self._service.log.error("failed", error, request=self._request.state.request_id)
            yield _error_event(self._request.url.path, api_error(error))


def _error_event(path: str, error: ApiError) -> bytes:
    if path.startswith(ANTHROPIC_PATH):
        return event(error.anthropic(), "error")
    return event(error.openai())
