"""The server as an application of Ray Serve, with replicas of its models.

    serve run hybridge.serve.ray:app config=serve.toml replicas=2

Ray's router sends requests whose prompts share a prefix to the same replica, so that its prefix cache has it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridge.artifact.errors import SettingError
from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.app import create_app
from hybridge.serve.config_file import read_config_file
from hybridge.serve.errors import OVERLOADED, RATE_LIMIT, ApiError, error_response
from hybridge.serve.middleware import read_body
from hybridge.serve.service import new_service
from hybridge.serve.settings import ServeSettings

# Ray's module for users needs vLLM installed; the class itself does not.
_ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router"
# Most replicas that are tried for one request: it moves to another when one dies.
_TRIES = 3
# Requests that wait where no replica takes them, for example because none is ready.
_WAITING = 1_000
# Most requests in one ingress, with their bodies in memory; more get status 429.
_FORWARDED = 2_000
# Parts of an answer that Ray has not yet taken; beyond these, the server's send_timeout counts.
_MESSAGES, _DRAIN_SECONDS = 64, 0.05
_UNSUPPORTED = 1003


class RayArgs(BaseModel):
    """Arguments of ``app``. config, api_key_file: paths on every node.

    replicas: a fixed number, or None to scale between min_replicas and max_replicas, so that each has about
    target_ongoing_requests. Other resources of a replica: num_cpus, num_gpus.
    """

    model_config = ConfigDict(extra="forbid")

    config: str
    api_key_file: str | None = None
    replicas: int | None = Field(default=None, ge=1)
    min_replicas: int = Field(default=1, ge=1)
    max_replicas: int = Field(default=4, ge=1)
    target_ongoing_requests: float = Field(default=8.0, gt=0)
    num_cpus: float = Field(default=1.0, ge=0)
    num_gpus: float = Field(default=0.0, ge=0)


@dataclass(frozen=True)
class RoutedRequest:
    """An HTTP request for a replica. prompt: the text by which Ray's router chooses one."""

    prompt: str
    scope: dict[str, Any]
    body: bytes


class ModelReplica:
    """One replica: the whole server without its socket."""

    async def __init__(self, config: str, api_key_file: str | None) -> None:  # type: ignore[misc]
        """Load the models to preload; errors as of ``hybridge serve``."""
        settings, models = read_config_file(Path(config))
        keys = None if api_key_file is None else ApiKeys.from_file(Path(api_key_file))
        self._service = new_service(ServeSettings(**settings), models, keys)
        self._app = create_app(self._service)
        await self._service.store.preload()

    async def check_health(self) -> None:
        """Ray replaces a replica that cannot compute a token."""
        if not await self._service.store.ready():
            raise RuntimeError("the models cannot compute a token")

    async def answer(self, request: RoutedRequest) -> AsyncIterator[Message]:
        """The ASGI messages of the response; ending the iteration early is a disconnect for the application."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(_MESSAGES)
        disconnected = asyncio.Event()
        given: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if not given:
                await disconnected.wait()
            return given.pop() if given else {"type": "http.disconnect"}

        async def answered() -> None:
            try:
                await self._app({**request.scope, "state": {}}, receive, messages.put)
            finally:
                await messages.put(None)

        answering = asyncio.ensure_future(answered())
        try:
            while (message := await messages.get()) is not None:
                yield message
            answering.result()
        finally:
            disconnected.set()
            while not answering.done():
                # The application may wait for room.
                while not messages.empty():
                    messages.get_nowait()
                await asyncio.sleep(0)
                await asyncio.wait([answering], timeout=_DRAIN_SECONDS)


class ForwardingApp:
    """The ASGI application that clients reach: it reads requests and forwards the answers of replicas."""

    def __init__(self, replicas: DeploymentHandle, settings: ServeSettings) -> None:
        self._replicas, self._settings = replicas.options(stream=True), settings
        self._forwarded = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        elif scope["type"] == "websocket":
            # All turns of a connection would have to reach the same replica.
            await receive()
            await send({"type": "websocket.close", "code": _UNSUPPORTED})
        elif scope["type"] == "http":
            settings, headers = self._settings, Headers(scope=scope)
            self._forwarded += 1
            try:
                if self._forwarded > _FORWARDED:
                    raise _queue_full(_FORWARDED)
                body = await read_body(receive, headers, settings.max_body_bytes, settings.receive_timeout)
                await self._forward(RoutedRequest(prompt_of(body), _plain(scope), body), send)
            except ApiError as error:
                await error_response(scope["path"], error)(scope, receive, send)
            finally:
                self._forwarded -= 1

    async def _forward(self, request: RoutedRequest, send: Send) -> None:
        """Forward a replica's answer; if the replica dies before the body begins, try another one."""
        for _ in range(_TRIES):
            start: Message | None = None
            begun = False
            try:
                async for message in self._replicas.answer.remote(request):  # type: ignore[union-attr]
                    if message["type"] == "http.response.start":
                        start = message
                        continue
                    if not begun and start is not None:
                        await send(start)
                    begun = True
                    await send(message)
                return
            except BackPressureError:
                raise _queue_full(_WAITING) from None
            except RayActorError:
                if begun:
                    raise
        raise ApiError(503, f"expected a replica that answers, found none in {_TRIES} tries", OVERLOADED, retry_after=1)


@serve.ingress()
class Ingress:
    """The deployment of ``ForwardingApp``."""

    def __init__(self, replicas: DeploymentHandle, settings: ServeSettings) -> None:
        self._app = ForwardingApp(replicas, settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app


def _queue_full(most: int) -> ApiError:
    return ApiError(
        429,
        f"expected at most {most} waiting requests, found that many: try again later",
        RATE_LIMIT,
        "queue_full",
        retry_after=1,
    )


def prompt_of(body: bytes) -> str:
    """The text of a prompt or of messages; a space if it is empty, because Ray's router divides by its length."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return " "
    given = found if isinstance(found, dict) else {}
    texts = [given[name] for name in ("system", "instructions", "prompt", "messages", "input") if given.get(name)]
    try:
        return "".join(map(_text, texts)) or " "
    except RecursionError:
        return " "


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("content") or value.get("text") or "")
    return str(value) if isinstance(value, int) else ""


def _plain(scope: Scope) -> dict[str, Any]:
    """The parts of an ASGI scope that can be pickled and that the application reads."""
    names = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
    return {
        **{name: scope[name] for name in names if name in scope},
        "headers": [tuple(each) for each in scope["headers"]],
    }


def _router() -> str:
    """The path of Ray's prefix-affinity router."""
    try:
        import_module("ray.serve.llm.request_router")
    except ImportError:
        return f"{_ROUTER}:PrefixCacheAffinityRouter"
    return "ray.serve.llm.request_router:PrefixCacheAffinityRouter"


def app(args: RayArgs) -> serve.Application:
    """The application, for ``serve run`` and for configuration files of Ray Serve."""
    values, models = read_config_file(Path(args.config))
    if not any(model.preload for model in models):
        raise SettingError(f"{args.config}: expected a model with preload = true, found none: set it for one")
    scaling: dict[str, Any] = {"num_replicas": args.replicas}
    if args.replicas is None:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=args.min_replicas,
                max_replicas=args.max_replicas,
                target_ongoing_requests=args.target_ongoing_requests,
            )
        }
    model: Any = serve.deployment(
        ModelReplica,
        name="Model",
        max_ongoing_requests=10_000,  # the server limits its queue itself, with status 429
        max_queued_requests=_WAITING,
        request_router_config=RequestRouterConfig(request_router_class=_router()),  # type: ignore[arg-type]
        ray_actor_options={"num_cpus": args.num_cpus, "num_gpus": args.num_gpus},
        **scaling,
    )
    # The ingress itself answers 429 with Retry-After; requests beyond its own queue get status 503 from Ray's proxy.
    front: Any = serve.deployment(
        Ingress, name="Ingress", max_ongoing_requests=_FORWARDED + _WAITING, max_queued_requests=_WAITING
    )
    found: serve.Application = front.bind(model.bind(args.config, args.api_key_file), ServeSettings(**values))
    return found
