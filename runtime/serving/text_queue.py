"""Text work (chat templates, tokenizing) off the event loop: in one thread, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from hybridge.artifact.errors import RequestError

T = TypeVar("T")


class TextQueue:
    """A worker thread that runs text work in the order of the calls."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridge-text")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue ``work``; RequestError when closed."""
        try:
            return self._thread.submit(work)
        except RuntimeError:
            raise RequestError("expected an open AsyncLLM, found a closed one: open another") from None

    def add(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Run ``work``, then call ``done`` with its future in the caller's event loop, in the order of the calls."""
        event_loop = asyncio.get_running_loop()

        def ended(future: Future[T]) -> None:
            with suppress(RuntimeError):  # the caller's event loop has ended
                event_loop.call_soon_threadsafe(done, future)

        self.submit(work).add_done_callback(ended)

    def close(self) -> None:
        """Drop queued work and wait for the running one; may be called twice."""
        self._thread.shutdown(wait=True, cancel_futures=True)
