"""HTTP connections that have to send their headers in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_MOST_HEADER_BYTES = 1 << 16


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose header is incomplete ``seconds`` after it began, or after the connection was made, and
    one that sends a larger header than 64 KiB."""

    def __init__(self, seconds: float, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self._seconds = seconds
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        # Requests that were not answered when the client sent another one.
        self._earlier: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_timer is None:
            self._header_bytes = 0
        elif self._header_bytes > _MOST_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"expected a header of at most {_MOST_HEADER_BYTES} bytes, found more")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()
        self._earlier = [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        # uvicorn tells only the latest request of the disconnect.
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()

    def _start_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self._seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
