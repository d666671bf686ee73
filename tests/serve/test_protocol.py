"""Connections without a network: what the log says of one that the system ended."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hybridge.serve.protocol import TimedProtocol, websocket_protocol
from hybridge.serve.response_socket import ResponseSocket


class Transport(asyncio.Transport):
    """reads: whether the protocol wants data. written: what it has sent. aborted: whether it gave up the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.aborted, self.written = True, False, b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """uvicorn closes what is lost already."""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def test_the_log_has_the_reason_of_a_lost_connection() -> None:
    """Such as the time limit for a client that takes no data; a client that closes its connection has none."""
    requests: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        requests.append(scope)
        while (await receive())["type"] != "http.disconnect":
            pass

    async def lost(error: Exception | None) -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)  # type: ignore[arg-type]
        protocol = TimedProtocol(5, config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(Transport())
        protocol.data_received(b"GET /a HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)
        protocol.connection_lost(error)
        await asyncio.gather(*protocol.tasks)

    for error in (TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)), ConnectionResetError(), None):
        asyncio.run(lost(error))
    reasons = [request["state"].get("log", {}).get("disconnect") for request in requests]
    assert reasons == ["Connection timed out", "ConnectionResetError", None]


@pytest.mark.parametrize("rest", [b"", b"3\r\nabc\r\n0\r\n\r\n"], ids=["endless", "ended"])
def test_the_body_of_a_refused_request_has_to_end(rest: bytes) -> None:
    """It is read, so that the client reads the refusal."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> bool:
        config, transport = uvicorn.Config(app, lifespan="off", log_config=None), Transport()  # type: ignore[arg-type]
        protocol = TimedProtocol(0.01, config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(transport)
        protocol.data_received(b"POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await asyncio.sleep(0)
        assert transport.written.startswith(b"HTTP/1.1 401")
        protocol.data_received(rest or b"3\r\nabc\r\n")
        await asyncio.sleep(0.05)
        protocol.connection_lost(None)
        return transport.aborted

    assert asyncio.run(run()) == (not rest)


HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"


class Sockets:
    """An application that answers no message. ``lines``: its log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.settings, self.draining, self.log = SimpleNamespace(send_timeout=5), False, self
        self.on_drain = set[Callable[[], None]]()

    def write(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await ResponseSocket(self, self, scope, receive, send).run()  # type: ignore[arg-type]


async def opened(app: Sockets) -> tuple[Any, Transport]:
    config, transport = uvicorn.Config(app, lifespan="off", log_config=None), Transport()  # type: ignore[arg-type]
    protocol = websocket_protocol()(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    protocol.data_received(HANDSHAKE)
    while not protocol.handshake_complete:
        await asyncio.sleep(0)
    return protocol, transport


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda p: p.connection_lost(ConnectionResetError(errno.ECONNRESET, "reset by peer")), "reset by peer"),
        (lambda p: (p.keepalive_timeout(), p.connection_lost(None)), "no answer to a ping"),
        (lambda p: (p.data_received(b"\xff" * 9), p.connection_lost(None)), "data that is no WebSocket's (code 1002)"),
        (lambda p: p.connection_lost(None), None),
    ],
)
def test_the_log_has_the_reason_of_a_lost_websocket(end: Callable[[Any], object], reason: str | None) -> None:
    pytest.importorskip("websockets", reason="needs the package websockets")
    app = Sockets()

    async def run() -> None:
        protocol, _ = await opened(app)
        end(protocol)
        await asyncio.gather(*protocol.tasks)

    asyncio.run(run())
    assert app.lines == ([] if reason is None else [{"event": "socket lost", "disconnect": reason}])


def test_a_client_that_takes_nothing_is_not_read() -> None:
    """Otherwise the answers to its pings would fill the memory."""
    pytest.importorskip("websockets", reason="needs the package websockets")

    async def run() -> None:
        protocol, transport = await opened(Sockets())
        before = len(transport.written)
        protocol.data_received(PING)
        assert len(transport.written) == before + 2 and transport.reads
        protocol.pause_writing()
        protocol.data_received(b"\x81\x80\0\0\0\0")  # that came before it, an empty message
        await asyncio.sleep(0.01)
        assert not transport.reads
        protocol.resume_writing()
        await asyncio.sleep(0.01)
        assert transport.reads
        protocol.connection_lost(None)
        await asyncio.gather(*protocol.tasks)

    asyncio.run(run())
