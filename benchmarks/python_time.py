"""The time that Python takes between two runs of ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort


def python_time(generate: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Microseconds from the end of one run to the beginning of the next, over ``repeats`` calls of ``generate``."""
    gaps: list[float] = []
    for _ in range(repeats):
        with session_runs() as runs:
            generate()
        gaps += [after[0] - before[1] for before, after in pairwise(runs)]
    p50, p95 = (1e6 * float(value) for value in np.percentile(gaps, [50, 95]))
    return {"median": p50, "p95": p95, "steps": len(gaps)}


@contextmanager
def session_runs() -> Iterator[list[tuple[float, float]]]:
    """Begin and end (time.perf_counter) of every run of ONNX Runtime with bound inputs while entered."""
    runs: list[tuple[float, float]] = []
    original = ort.InferenceSession.run_with_iobinding

    def timed(session: Any, *arguments: Any, **options: Any) -> None:
        started = time.perf_counter()
        original(session, *arguments, **options)
        runs.append((started, time.perf_counter()))

    ort.InferenceSession.run_with_iobinding = timed
    try:
        yield runs
    finally:
        ort.InferenceSession.run_with_iobinding = original
