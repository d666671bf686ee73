"""Errors of plugins, kept until the caller of TensorRT can raise them.

TensorRT calls a plugin from C++. An exception there ends as a failed build or step without its text, and from some
methods (workspace sizes, serialized fields) TensorRT goes on as if nothing had happened. So every plugin records its
first error here, and the caller of TensorRT asks for it afterwards, whatever TensorRT returned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hybridge.artifact.errors import EngineError


class PluginErrors:
    """The first error of each thread since its last query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[int, EngineError] = {}

    def record(self, error: EngineError) -> None:
        """Keep ``error`` unless the calling thread has one: later errors are mostly consequences of the first."""
        with self._lock:
            self._first.setdefault(threading.get_ident(), error)

    def take(self, any_thread: bool = False) -> EngineError | None:
        """The error that plugins met in calls of this thread (or in any, for a builder with its own threads)."""
        with self._lock:
            error = self._first.pop(threading.get_ident(), None)
            if any_thread and self._first:
                error = error or next(iter(self._first.values()))
                self._first.clear()
        return error

    @contextmanager
    def raised(self, any_thread: bool = False) -> Iterator[None]:
        """After the block, raise what plugins met in it, in place of any error that TensorRT made of it."""
        self.take(any_thread)
        try:
            yield
        except Exception as error:
            met = self.take(any_thread)
            if met is not None:
                raise met from error
            raise
        met = self.take(any_thread)
        if met is not None:
            raise met
