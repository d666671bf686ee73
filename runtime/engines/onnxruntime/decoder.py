"""Decoding with runs that are bound once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense import Decoder
from hybridge.runtime.engines.onnxruntime.bound_run import BoundRun
from hybridge.runtime.engines.onnxruntime.row_runs import RowRun, token_runs
from hybridge.runtime.engines.onnxruntime.states import ArrayStateSet


class BoundDecoder(Decoder):
    """Decodes rows in runs of contiguous rows.

    The weights of a large model evict Python's objects from the processor's caches in every step, so each object and
    function that a step touches costs time. A step therefore only checks the lengths and runs.
    """

    def __init__(self, rows: Sequence[int], states: ArrayStateSet, bound: Callable[[RowRun], BoundRun]) -> None:
        """``bound`` binds a run to the states as they are now; EngineError when ``rows`` are not rows of the states."""
        if not rows or rows[0] < 0 or rows[-1] >= states.batch:
            raise EngineError(f"expected rows from 0 to {states.batch - 1}, found {list(rows)}")
        self._states, self._bound, self._runs = states, bound, token_runs(rows)
        self._bind()

    def step(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> Sequence[np.ndarray]:
        states = self._states
        if states.version != self._version:
            self._bind()
        if min(past_lengths) < 0 or max(past_lengths) >= self._capacity:
            raise EngineError(
                f"expected rows with room for one more token in {self._capacity} positions, found rows that hold "
                f"{list(past_lengths)}: reserve more first"
            )
        for bound, part in self._parts:
            bound.decode(tokens[part], past_lengths[part])
            if bound.swapped:
                states.commit(bound.swapped, bound.run.start, bound.run.stop)
        return self._logits

    def _bind(self) -> None:
        self._version, self._capacity = self._states.version, self._states.max_seq
        self._parts: list[tuple[BoundRun, slice]] = []
        self._logits: list[np.ndarray] = []
        for run in self._runs:
            bound = self._bound(run)
            self._parts.append((bound, slice(len(self._logits), len(self._logits) + run.rows)))
            self._logits += bound.last_logits
