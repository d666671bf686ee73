"""When ONNX Runtime was at work, seen from outside of the runtime."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import onnxruntime as ort


class EngineTime:
    """While entered, records beginning and end of every bound run of every session (time.perf_counter)."""

    def __init__(self) -> None:
        self.runs: list[tuple[float, float]] = []
        self._original: Any = None

    def __enter__(self) -> EngineTime:
        original = self._original = ort.InferenceSession.run_with_iobinding

        def timed(session: Any, *arguments: Any, **options: Any) -> None:
            started = time.perf_counter()
            original(session, *arguments, **options)
            self.runs.append((started, time.perf_counter()))

        ort.InferenceSession.run_with_iobinding = timed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ort.InferenceSession.run_with_iobinding = self._original

    def gaps(self) -> list[float]:
        """Seconds between the end of each run and the beginning of the next."""
        return [after[0] - before[1] for before, after in zip(self.runs, self.runs[1:], strict=False)]
