"""HTTP connections with limits on the time and the size of request headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

_MOST_HEADER_BYTES = 1 << 16


def websocket_protocol() -> Any:
    """WebSockets for uvicorn that stay open when the server drains: the application closes each after its answer.

    "none" where the package websockets is missing.
    """
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    except ImportError:
        return "none"

    class DrainedProtocol(WebSocketsSansIOProtocol):
        def shutdown(self) -> None:
            if not self.handshake_complete or self.close_sent:
                super().shutdown()

    return DrainedProtocol


class _HeaderTooLargeError(Exception):
    """Ends the parsing of a request."""


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose header is incomplete ``seconds`` after it began, or after the connection was made, and
    one whose header is larger than 64 KiB (status 431). Trailers count as part of the header."""

    def __init__(self, seconds: float, *args: Any, **names: Any) -> None:
        super().__init__(*args, **names)
        self._seconds = seconds
        self._header_timer: asyncio.TimerHandle | None = None
        # Bytes of the URL and of the fields of this request; bytes received since the parser reported anything.
        self._header_bytes = self._unparsed_bytes = 0
        # Requests that were not answered when the client sent another one.
        self._earlier: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        # The parser buffers a field until it is complete, so a large read is passed to it in bounded parts.
        for start in range(0, len(data), _MOST_HEADER_BYTES):
            part = data[start : start + _MOST_HEADER_BYTES]
            self._unparsed_bytes += len(part)
            super().data_received(part)
            if self._unparsed_bytes > 2 * _MOST_HEADER_BYTES and not self.transport.is_closing():
                self._header_bytes = self._unparsed_bytes
                self.send_400_response("")
            if self.transport.is_closing():
                return

    def send_400_response(self, msg: str) -> None:
        """Refuse the request and close the connection; status 431 if its header is too large."""
        if self._header_bytes <= _MOST_HEADER_BYTES:
            super().send_400_response(msg)
            return
        text = b"expected a header of at most %d bytes, found more" % _MOST_HEADER_BYTES
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
        self.transport.write(STATUS_LINE[431] + head + text)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._unparsed_bytes = 0
        self._start_timer()
        self._earlier = [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        unanswered = [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]
        if exc is not None:
            # Such as a time limit of the system for a client that takes no data.
            reason = getattr(exc, "strerror", None) or type(exc).__name__
            for cycle in unanswered:
                cycle.scope["state"].setdefault("log", {})["disconnect"] = reason
        super().connection_lost(exc)
        # uvicorn notifies only the latest request of the disconnect.
        for cycle in unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def _count(self, header_bytes: int) -> None:
        """Count bytes of the header; an error ends the parsing, and data_received refuses the request."""
        self._header_bytes, self._unparsed_bytes = self._header_bytes + header_bytes, 0
        if self._header_bytes > _MOST_HEADER_BYTES:
            raise _HeaderTooLargeError

    def _start_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self._seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
