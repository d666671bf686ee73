"""Calls of several threads on one LLM: one step at a time, and none after it was closed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar
from weakref import WeakSet

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation.results import Piece

P = ParamSpec("P")
T = TypeVar("T")
# Seconds that a thread leaves to others that wait for their turn: enough for one of them to wake up.
_PAUSE = 1e-4


class Turns:
    """A lock that each step takes, so that calls of several threads take turns between steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        # Threads that may have to wait, and the one that had the last turn.
        self._waiting: set[int] = set()
        self._last: int | None = None
        self._closed = False
        self._open: WeakSet[PieceStream] = WeakSet()
        # Iterators that were dropped during a step.
        self._abandoned: deque[Generator[Piece]] = deque()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work``, while no other thread computes. RequestError when closed, or from inside of such work."""
        thread = self._asking_thread()
        try:
            # The lock's own context manager: an interrupt finds it either released or about to be.
            with self._lock:
                self._owner = self._last = thread
                try:
                    if self._closed:
                        self.check_open()
                    if self._abandoned:
                        self._close_abandoned()
                    return work(*args, **kwargs)
                finally:
                    self._owner = None
        finally:
            self._waiting.discard(thread)

    def others_wait(self) -> bool:
        """During a turn: whether another thread waits for its own, or a dropped iterator has to be closed."""
        return len(self._waiting) > 1 or bool(self._abandoned)

    def check_open(self) -> None:
        """RequestError when closed."""
        if self._closed:
            raise RequestError("expected an open LLM, found a closed one: open another")

    def stream(self, pieces: Generator[Piece]) -> PieceStream:
        """``pieces``, each of which takes a turn."""
        stream = PieceStream(self, pieces)
        self._open.add(stream)
        return stream

    def close(self, release: Callable[[], None]) -> None:
        """End all streams, then ``release``, once; later turns are refused. Calling it twice is allowed."""
        thread = self._asking_thread()
        try:
            with self._lock:
                if self._closed:
                    return
                self._owner, self._closed = thread, True
                try:
                    self._close_abandoned()
                    for stream in list(self._open):
                        stream.pieces.close()
                    release()
                finally:
                    self._owner = None
        finally:
            self._waiting.discard(thread)

    def abandon(self, pieces: Generator[Piece]) -> None:
        """Close ``pieces`` now, or with the next turn while a step runs; waits for nothing."""
        self._abandoned.append(pieces)
        if self._lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._close_abandoned()
            finally:
                self._lock.release()

    def _asking_thread(self) -> int:
        """The thread that asks for a turn, which leaves the next one to others if it had the last."""
        thread = threading.get_ident()
        if self._owner == thread:
            raise RequestError(
                "expected a call between the steps of an LLM, found one from inside of a step, as of a logits "
                "processor: call it when the step has ended"
            )
        if self._waiting and thread == self._last:
            time.sleep(_PAUSE)
        self._waiting.add(thread)
        return thread

    def _close_abandoned(self) -> None:
        while self._abandoned:
            self._abandoned.popleft().close()


class PieceStream(Iterator[Piece]):
    """Pieces of one call as they arrive; any thread may read them. ``close``, or deleting it, ends its requests."""

    def __init__(self, turns: Turns, pieces: Generator[Piece]) -> None:
        self._turns, self.pieces = turns, pieces

    def __next__(self) -> Piece:
        piece = self._turns.run(next, self.pieces, None)
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """End what has not ended; allowed at any time."""
        self._turns.abandon(self.pieces)

    def __del__(self) -> None:
        self._turns.abandon(self.pieces)
