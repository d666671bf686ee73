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
        """Reads nothing from a client that does not take what was sent to it, such as the answers to its pings. The
        scope gets the reason of a lost connection, as in TimedProtocol."""

        def shutdown(self) -> None:
            if not self.handshake_complete or self.close_sent:
                super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            self._lost(_reason(exc))
            super().connection_lost(exc)

        def keepalive_timeout(self) -> None:
            if not self.close_sent:
                self._lost("no answer to a ping")
            super().keepalive_timeout()

        def handle_parser_exception(self) -> None:
            assert self.conn.close_sent is not None
            self._lost(f"data that is no WebSocket's (code {self.conn.close_sent.code})")
            super().handle_parser_exception()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.transport.pause_reading()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()

        async def receive(self) -> Any:
            message = await super().receive()
            if not self.writable.is_set() and not self.transport.is_closing():
                self.transport.pause_reading()
            return message

        def _lost(self, reason: str | None) -> None:
            if reason is not None and self.handshake_initiated:
                self.scope["state"].setdefault("log", {}).setdefault("disconnect", reason)

    return DrainedProtocol


def _reason(error: Exception | None) -> str | None:
    """Why the system ended a connection, such as its time limit for a client that takes no data; None: it did not."""
    return None if error is None else getattr(error, "strerror", None) or type(error).__name__


class _HeaderTooLargeError(Exception):
    """Ends the parsing of a request."""


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose header is incomplete ``seconds`` after it began, or after the connection was made, one
    whose body is incomplete ``seconds`` after its request was answered, and one whose header is larger than 64 KiB
    (status 431). Trailers count as part of the header."""

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
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            # The rest of a request that was refused is read, so that the client reads the refusal, but not for long.
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        unanswered = [each for each in (*self._earlier, self.cycle) if each and not each.response_complete]
        reason = _reason(exc)
        if reason is not None:
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
