"""The bodies of all requests together are bounded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hybridge.serve.middleware import _BODIES, RequestMiddleware

MOST = 10


def test_the_bodies_of_all_requests_are_bounded() -> None:
    def ignore(*values: Any, **fields: Any) -> None:
        """Metrics, the log and rate limits."""

    service: Any = SimpleNamespace(
        settings=SimpleNamespace(max_body_bytes=MOST, receive_timeout=60),
        keys=None,
        local_only=False,
        draining=False,
        tracing=None,
        body_bytes=0,
        check_limits=ignore,
        metrics=SimpleNamespace(request_ended=ignore),
        log=SimpleNamespace(write=ignore),
    )
    ends = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ends.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(size: int) -> int:
        found: list[int] = []
        parts = [{"type": "http.request", "body": b"x", "more_body": left > 0} for left in reversed(range(size))]

        async def receive() -> Any:
            return parts.pop(0)

        async def send(message: Any) -> None:
            found.append(message.get("status", 0))

        scope: Any = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": [], "client": None}
        await RequestMiddleware(app, service)(scope, receive, send)
        return found[0]

    async def run() -> None:
        running = [asyncio.ensure_future(status(MOST)) for _ in range(_BODIES)]
        await asyncio.sleep(0.01)
        assert service.body_bytes == _BODIES * MOST
        assert await status(1) == 503
        ends.set()
        assert await asyncio.gather(*running) == [200] * _BODIES
        assert service.body_bytes == 0 and await status(MOST) == 200
        assert await status(MOST + 1) == 413 and service.body_bytes == 0

    asyncio.run(run())
