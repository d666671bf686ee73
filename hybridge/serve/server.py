"""The server: its socket, models and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import uvicorn

try:
    import uvloop
except ImportError:  # not made for Windows
    uvloop = None  # type: ignore[assignment]

from hybridge.artifact.errors import OutputError, SettingError
from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.app import create_app
from hybridge.serve.loopback import is_loopback
from hybridge.serve.protocol import TimedProtocol, websocket_protocol
from hybridge.serve.request_log import RequestLog, with_messages_of
from hybridge.serve.service import Service, new_service
from hybridge.serve.settings import ModelSettings, ServeSettings

T = TypeVar("T")
# Connections that wait to be accepted.
_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HttpServer:
    """Listens from its creation on, and serves in ``run``."""

    def __init__(
        self,
        settings: ServeSettings,
        models: Sequence[ModelSettings],
        keys: ApiKeys | None = None,
        log: RequestLog | None = None,
    ) -> None:
        """HybridgeError for wrong settings, or a folder that is no artifact."""
        self.service = new_service(settings, models, keys, log)
        # A web page of another origin must not reach the server by a name that resolves to this machine.
        self.service.local_only = keys is None and is_loopback(settings.host)
        self._server = _Server(_config(self.service), self.service)
        self._listener = _listener(settings.host, settings.port, settings.send_timeout)
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self, owns_process: bool = False) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``, then let running requests end (``drain_timeout``).

        The server is ready when the models to preload can compute a token. HybridgeError when one cannot be loaded.
        owns_process: nothing else runs in this process, so objects that exist when the server is ready are excluded
        from later garbage collections, each of which would otherwise stop all threads for up to 0.2 seconds.
        """
        with self._listener, with_messages_of("uvicorn.error", self.service.log):
            run_event_loop(self._serve(owns_process))

    def stop(self) -> None:
        """End ``run`` as SIGTERM does; from any thread."""
        if self._event_loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._event_loop.call_soon_threadsafe(self._server.drain)

    async def _serve(self, owns_process: bool) -> None:
        self._event_loop = asyncio.get_running_loop()
        store, log = self.service.store, self.service.log
        log.write("listening", url=self.url, models=store.names)
        serving = asyncio.ensure_future(self._server.serve([self._listener]))
        loading = asyncio.ensure_future(store.preload())
        try:
            await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done() and loading.exception() is not None:
                self._server.should_exit = self._server.force_exit = True
            elif loading.done():
                if owns_process:
                    gc.collect()
                    gc.freeze()
                log.write("ready")
            await serving
            if loading.done():
                loading.result()
        finally:
            loading.cancel()
            await store.close()
            if self.service.tracing is not None:
                await asyncio.to_thread(self.service.tracing.close)
            log.write("stopped")


def run_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, on uvloop where there is one."""
    return asyncio.run(work) if uvloop is None else uvloop.run(work)


def _config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        http=lambda *args, **names: TimedProtocol(service.settings.receive_timeout, *args, **names),  # type: ignore[arg-type]
        ws=websocket_protocol(),
        ws_max_size=service.settings.max_body_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=service.settings.drain_timeout,
    )


class _Server(uvicorn.Server):
    """Ends without an error after a signal, and refuses new requests from then on. A second signal ends at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        event_loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                event_loop.add_signal_handler(number, self.drain)
        try:
            yield
        finally:
            for number in _SIGNALS:
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    event_loop.remove_signal_handler(number)

    def drain(self) -> None:
        """Refuse new requests, and end when the running ones have ended."""
        if self._service.draining:
            self.force_exit = True
            return
        self._service.draining = self.should_exit = True
        self._service.log.write("draining")
        for drain in self._service.on_drain:
            drain()


def _listener(host: str, port: int, send_timeout: float) -> socket.socket:
    """A socket that listens. Linux ends a connection of it whose client takes no data for ``send_timeout`` seconds,
    also while it waits to be closed. SettingError for an unknown host, OutputError for a port that is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingError(f"host: expected an address of this machine, found {host!r} ({error})") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * send_timeout))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OutputError(
            f"port: expected a free one at {host}, found {port} ({error.strerror}): give another"
        ) from error
    return listener
