"""Calls of several threads on one LLM: one step at a time, and none after it was closed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation.results import Piece


class Turns:
    """A lock that each step takes, so that calls of several threads take turns between steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._closed = False
        self._open: WeakSet[PieceStream] = WeakSet()
        # Iterators that were dropped during a step.
        self._abandoned: deque[Generator[Piece]] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, no other thread computes. RequestError when closed, or from inside of a step of the same thread."""
        with self._acquired():
            self.check_open()
            self._close_abandoned()
            yield

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
        with self._acquired():
            if self._closed:
                return
            self._closed = True
            self._close_abandoned()
            for stream in list(self._open):
                stream.pieces.close()
            release()

    def abandon(self, pieces: Generator[Piece]) -> None:
        """Close ``pieces`` now, or with the next turn while a step runs; waits for nothing."""
        self._abandoned.append(pieces)
        if self._lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._close_abandoned()
            finally:
                self._lock.release()

    @contextmanager
    def _acquired(self) -> Iterator[None]:
        thread = threading.get_ident()
        if self._owner == thread:
            raise RequestError(
                "expected a call between the steps of an LLM, found one from inside of a step, as of a logits "
                "processor: call it when the step has ended"
            )
        with self._lock:
            self._owner = thread
            try:
                yield
            finally:
                self._owner = None

    def _close_abandoned(self) -> None:
        while self._abandoned:
            self._abandoned.popleft().close()


class PieceStream(Iterator[Piece]):
    """Pieces of one call as they come, to be read by any thread. ``close``, or dropping it, ends its requests."""

    def __init__(self, turns: Turns, pieces: Generator[Piece]) -> None:
        self._turns, self.pieces = turns, pieces

    def __next__(self) -> Piece:
        with self._turns.turn():
            piece = next(self.pieces, None)
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """End what has not ended; allowed at any time."""
        self._turns.abandon(self.pieces)

    def __del__(self) -> None:
        self._turns.abandon(self.pieces)
