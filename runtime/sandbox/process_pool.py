"""Several child processes for the same kind of work: while one waits for a processor, another one answers."""

from __future__ import annotations

import threading
from typing import Any

from hybridge.runtime.sandbox.process import LimitedProcess, ProcessLimits


class ProcessPool:
    """Up to ``most`` children with ``limits`` each, started when all others are in use. May be used from several
    threads; ends as ``LimitedProcess`` does."""

    def __init__(self, limits: ProcessLimits, most: int) -> None:
        self._limits = limits
        self._free, self._lock = threading.Semaphore(most), threading.Lock()
        self._all: list[LimitedProcess] = []
        # The one that was used last comes first: calls one after another need one child.
        self._idle: list[LimitedProcess] = []

    def call(self, *request: Any) -> bytes:
        """As ``LimitedProcess.call``, by a child that is not in use; waits for one."""
        with self._free:
            process = self._taken()
            try:
                return process.call(*request)
            finally:
                with self._lock:
                    self._idle.append(process)

    def close(self) -> None:
        """End the children; a later call starts one again."""
        with self._lock:
            processes = list(self._all)
        for process in processes:
            process.close()

    def _taken(self) -> LimitedProcess:
        with self._lock:
            if not self._idle:
                self._all.append(LimitedProcess(self._limits))
                return self._all[-1]
            return self._idle.pop()
