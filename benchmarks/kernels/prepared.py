"""A call that can be timed, with its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Prepared:
    """One set of inputs and outputs on the GPU.

    run: enqueues the call on torch's current stream. error: relative norm against the float64 reference, after a run.
    """

    run: Callable[[], object]
    error: Callable[[], float]
