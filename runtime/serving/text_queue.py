"""Text work (chat templates, tokenizing) off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from hybridge.artifact.errors import RequestError
from hybridge.runtime.text.chat_template import TEXT_THREADS

T = TypeVar("T")


class TextQueue:
    """Threads for text work: one runs that of ``add`` in the order of the calls, others that of ``submit``."""

    def __init__(self) -> None:
        # Calls of ``add`` whose ``done`` has not been called.
        self._adding = 0
        # Calls of ``submit`` whose work has not ended.
        self._unfinished, self._idle = 0, threading.Condition()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridge-text")
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="hybridge-texts")

    @property
    def idle(self) -> bool:
        """Whether all work of ``submit`` has ended."""
        return not self._unfinished

    def wait_idle(self, seconds: float) -> None:
        """Wait until the queue is idle, for at most ``seconds``; from any thread but its own."""
        with self._idle:
            self._idle.wait_for(lambda: self.idle, seconds)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work``, perhaps beside that of other calls; RequestError when closed."""
        submitted = _submitted(self._threads, work)
        with self._idle:
            self._unfinished += 1
        submitted.add_done_callback(self._ended)
        return submitted

    def add(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Run ``work``, then call ``done`` with its future in the caller's event loop, in the order of the calls."""
        event_loop = asyncio.get_running_loop()

        def arrived(future: Future[T]) -> None:
            self._adding -= 1
            done(future)

        def ended(future: Future[T]) -> None:
            with suppress(RuntimeError):  # the caller's event loop has ended
                event_loop.call_soon_threadsafe(arrived, future)

        submitted = _submitted(self._thread, work)
        self._adding += 1
        submitted.add_done_callback(ended)

    def add_at_once(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """``add`` for work of microseconds: it runs here, unless an earlier call of ``add`` has not ended."""
        if self._adding:
            self.add(work, done)
            return
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        done(future)

    def close(self) -> None:
        """Drop queued work and wait for what is running; may be called twice."""
        for threads in (self._thread, self._threads):
            threads.shutdown(wait=True, cancel_futures=True)

    def _ended(self, future: Future[Any]) -> None:
        with self._idle:
            self._unfinished -= 1
            if not self._unfinished:
                self._idle.notify_all()


def _submitted(threads: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    try:
        return threads.submit(work)
    except RuntimeError:
        raise RequestError("expected an open AsyncLLM, found a closed one: open another") from None
