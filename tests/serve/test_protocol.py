"""Connections without a network: what the log says of one that the system ended."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from hybridge.serve.protocol import TimedProtocol


class Transport(asyncio.Transport):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """uvicorn closes what is lost already."""


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
