"""Middleware of every request: request id, API key, limits, log and metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridge.serve.api_keys import ANONYMOUS, Client
from hybridge.serve.errors import (
    AUTHENTICATION,
    NOT_FOUND,
    OVERLOADED,
    PERMISSION,
    TIMEOUT,
    ApiError,
    api_error,
    error_response,
)
from hybridge.serve.json_size import check_values
from hybridge.serve.loopback import host_name, is_loopback
from hybridge.serve.random_ids import random_hex
from hybridge.serve.response_socket import PATH, ResponseSocket

if TYPE_CHECKING:
    from hybridge.serve.service import Service

# Paths that need no key: load balancers and Prometheus have none, and the page prompts for one.
_OPEN = re.compile(r"/(health(/.*)?|metrics|openapi\.json|page/.*)?")
# Polled all the time.
_NOT_LOGGED = frozenset({"/health", "/health/live", "/health/ready", "/metrics", "/memory/{name:path}"})
# Largest bodies that all requests together may have.
_BODIES = 32
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class RequestMiddleware:
    """ASGI middleware. ``scope["state"]`` of a request gets its ``request_id`` and ``client``."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._service, scope, send)
        try:
            await self._app(scope, await exchange.admitted(receive), exchange.send)
        except ApiError as error:
            await error_response(scope["path"], error)(scope, receive, exchange.send)
        except Exception as error:
            self._service.log.error("failed", error, request=exchange.request_id)
            if not exchange.status:
                await error_response(scope["path"], api_error(error))(scope, receive, exchange.send)
        finally:
            exchange.ended()

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connect a WebSocket, each message of which is a request to this middleware."""
        service, headers = self._service, Headers(scope=scope)
        try:
            if scope["path"] != PATH:
                raise ApiError(404, f"expected {PATH} for a WebSocket, found another path", NOT_FOUND)
            check_host(service, headers)
            check_origin(service, headers)
            known_client(service, headers)
            if service.draining:
                raise _draining()
        except ApiError as error:
            service.log.write("socket refused", status=error.status_code, error=error.message)
            await error_response(scope["path"], error)(scope, receive, send)
            return
        await ResponseSocket(self, service, scope, receive, send).run()


class _Exchange:
    """One HTTP request and its response. ``status`` is 0 until the response begins."""

    def __init__(self, service: Service, scope: Scope, send: Send) -> None:
        self._service, self._scope, self._send = service, scope, send
        self._headers = Headers(scope=scope)
        self._began, self._began_ns = time.perf_counter(), time.time_ns()
        self._client: Client | None = None
        given = self._headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else random_hex()
        self.status = self._body_bytes = 0
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def admitted(self, receive: Receive) -> Receive:
        """Check the request and read its body; ApiError when it is refused."""
        service = self._service
        check_host(service, self._headers)
        if not _OPEN.fullmatch(self._scope["path"]):
            self._client = self._scope["state"]["client"] = known_client(service, self._headers)
            if service.draining:
                raise _draining()
            service.check_limits(self._client)
        settings = service.settings
        body = await read_body(receive, self._headers, settings.max_body_bytes, settings.receive_timeout, self._store)
        return _replayed(body, receive)

    def _store(self, count: int) -> None:
        """Count bytes of the body until the response ends; ApiError 503 when those of all requests are too many."""
        service = self._service
        self._body_bytes += count
        service.body_bytes += count
        if service.body_bytes > _BODIES * service.settings.max_body_bytes:
            raise ApiError(503, "expected fewer large requests at a time: try again", OVERLOADED, retry_after=1)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            if replaced := self._images_replaced:
                headers["x-images-replaced"] = str(replaced)
        await self._send(message)

    @property
    def _images_replaced(self) -> int:
        images = self._scope["state"].get("images")
        return 0 if images is None else images.replaced

    def ended(self) -> None:
        self._service.body_bytes -= self._body_bytes
        seconds, scope = time.perf_counter() - self._began, self._scope
        route = getattr(scope.get("route"), "path", "other")
        # 499, as in nginx: the client disconnected before there was a response.
        status = self.status or 499
        self._service.metrics.request_ended(route, status, seconds)
        self._trace(route, status)
        if route not in _NOT_LOGGED:
            self._service.log.write(
                "request",
                request=self.request_id,
                client=None if self._client is None else self._client.name,
                method=scope["method"],
                path=route,
                status=status,
                seconds=round(seconds, 4),
                **({"images_replaced": replaced} if (replaced := self._images_replaced) else {}),
                **scope["state"].get("log", {}),
            )

    def _trace(self, route: str, status: int) -> None:
        tracing, method = self._service.tracing, self._scope["method"]
        if tracing is None or route in _NOT_LOGGED:
            return
        attributes = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "hybridge.request_id": self.request_id,
        }
        prompts = self._scope["state"].get("prompts", ())
        tracing.record(self._headers, f"{method} {route}", self._began_ns, status, attributes, prompts)


def check_host(service: Service, headers: Headers) -> None:
    """ApiError for the host name of another machine, where only this one may connect."""
    host = headers.get("host", "")
    if service.local_only and host and not is_loopback(host_name(host)):
        raise ApiError(
            403, "expected a host name of this machine, found another: use --api-key-file behind a proxy", PERMISSION
        )


def check_origin(service: Service, headers: Headers) -> None:
    """ApiError for a web page of another origin, which browsers let open WebSockets; keys are out of its reach."""
    origin = headers.get("origin")
    if service.keys is None and origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise ApiError(403, "origin: expected this server's own, found another: use --api-key-file", PERMISSION)


def known_client(service: Service, headers: Headers) -> Client:
    """The client that the API key names; ApiError 401 for another key, or none."""
    if service.keys is None:
        return ANONYMOUS
    kind, _, value = headers.get("authorization", "").partition(" ")
    key = value.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    client = service.keys.client(key)
    if client is None:
        raise ApiError(401, "expected a valid API key as bearer token, found none", AUTHENTICATION, "invalid_api_key")
    return client


def _draining() -> ApiError:
    return ApiError(503, "the server is shutting down: try again", OVERLOADED, retry_after=1)


async def read_body(
    receive: Receive, headers: Headers, most: int, seconds: float, store: Callable[[int], None] = lambda count: None
) -> bytes:
    """The body of a request; ApiError when it is too large, has too many values, or does not arrive in time.

    store: is called with the bytes of each part.
    """
    too_large = ApiError(413, f"body: expected at most {most} bytes, found more: shorten the request")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large
    try:
        body = b"".join(await asyncio.wait_for(_chunks(receive, most, too_large, store), seconds))
    except asyncio.TimeoutError:
        raise ApiError(408, f"expected the whole request within {seconds} s, found less", TIMEOUT) from None
    check_values(body)
    return body


async def _chunks(receive: Receive, most: int, too_large: ApiError, store: Callable[[int], None]) -> Iterable[bytes]:
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunks.append(message.get("body", b""))
        size, more = size + len(chunks[-1]), message.get("more_body", False)
        if size > most:
            raise too_large
        store(len(chunks[-1]))
    return chunks


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that returns ``body`` first, and then the events that follow, such as the client's disconnect."""
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed
