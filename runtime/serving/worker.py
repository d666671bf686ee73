"""A serving loop in its own thread; other threads add and cancel requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.serving.live_requests import engine_error
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.text_queue import TextQueue

Deliver = Callable[[Output], None]
T = TypeVar("T")
_NOT_ADDED = "the request could not be added"
# Longest time that a step waits for text work, and then for the request that this made.
_TEXT_SECONDS, _REQUEST_SECONDS = 0.003, 0.0005


class ServingWorker:
    """Requests are added and cancelled between steps. ``deliver`` of each request is called in the worker's thread.

    ``flush`` is called there after every step with output. texts: whose work makes requests. It needs the processors of
    an engine that runs on the host, so each step of one waits for it, at most as long as a step takes.
    """

    def __init__(self, loop: ServingLoop, flush: Callable[[], None], texts: TextQueue | None = None) -> None:
        self._loop, self._flush, self._texts = loop, flush, None if loop.runs_ahead else texts
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._receivers: dict[int, tuple[object, Deliver]] = {}
        self._ids: dict[object, int] = {}
        self._thread = threading.Thread(target=self._run, name="hybridge-serving", daemon=True)
        self._thread.start()

    def add(self, key: object, submitted: ServingRequest, started: float, deliver: Deliver) -> None:
        """Add a request under the name ``key``; RequestError when the pools could never hold it."""
        self.check(submitted)
        self._send(lambda: self._add(key, submitted, started, deliver))

    @property
    def closed(self) -> bool:
        """Whether no more requests can be added."""
        return self._closed

    def check(self, submitted: ServingRequest) -> None:
        """RequestError when the pools could never hold the request, or when closed."""
        self.check_open()
        self._loop.check(submitted)

    def check_open(self) -> None:
        """RequestError when closed."""
        if self._closed:
            raise _closed()

    def cancel(self, key: object) -> None:
        """End the request, whether it waits, runs or has ended."""
        with suppress(RequestError):  # closed: it has ended
            self._send(lambda: self._cancel(key))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` between two steps; returns its result or raises its error. RequestError when closed."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return  # no caller waits for it
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._send(command)
        return future

    def close(self) -> None:
        """Stop after the current step; requests that have not ended get an error. Calling it twice is allowed."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise _closed()
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._wait():
                self._give(self._loop.step(self._do_commands))
        finally:
            # The engine's errors end requests, not the loop: an error here is a bug of the loop, or its end.
            with self._wake:
                self._closed = True
            for command in self._commands:
                command()
            error = ended_before_the_request()
            self._give([Output(id_, error=error) for id_ in self._receivers])

    def _wait(self) -> bool:
        """Wait for something to do; False when closed."""
        with self._wake:
            while not (self._closed or self._commands or self._loop.busy):
                self._wake.wait()
            return not self._closed

    def _wait_for_texts(self) -> None:
        """Leave the processors to text work, so that the requests it makes begin with the next step."""
        texts, seconds = self._texts, min(_TEXT_SECONDS, self._loop.step_seconds)
        if texts is None or texts.idle or not self._loop.busy:
            return
        texts.wait_idle(seconds)
        with self._wake:
            if not (self._commands or self._closed):
                self._wake.wait(min(_REQUEST_SECONDS, seconds))

    def _do_commands(self) -> None:
        self._wait_for_texts()
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def _add(self, key: object, submitted: ServingRequest, started: float, deliver: Deliver) -> None:
        try:
            id_ = self._loop.add(submitted, started)
        except Exception as error:
            # Checked before, but a prefix pinned since then may have taken its room; or too little host memory.
            reason = EngineError(str(error)) if isinstance(error, RequestError) else engine_error(error, _NOT_ADDED)
            deliver(Output(-1, error=reason))
            self._flush()
            return
        self._receivers[id_] = (key, deliver)
        self._ids[key] = id_

    def _cancel(self, key: object) -> None:
        id_ = self._ids.pop(key, None)
        if id_ is not None:
            self._loop.cancel(id_)
            del self._receivers[id_]

    def _give(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._receivers[output.request_id][1](output)
        for id_ in {output.request_id for output in outputs if output.piece is None or output.piece.generation}:
            if not self._loop.has(id_):
                key, _ = self._receivers.pop(id_)
                del self._ids[key]
        if outputs:
            self._flush()


def ended_before_the_request() -> EngineError:
    """The error of a request whose serving loop has ended."""
    return EngineError("the serving loop has ended before the request: open another AsyncLLM")


def _closed() -> RequestError:
    return RequestError("expected an open AsyncLLM, found a closed one: open another")
