"""Steps whose arrays are kept for later steps of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.one_row_steps import OneRowSteps
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.onnxruntime.repeated_steps import RepeatedSteps
from hybridge.runtime.engines.packed_inputs import PackedInputs

if TYPE_CHECKING:
    from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredBatch, DeferredStates


class PreparedSteps:
    """The last step, if the next one may be a repetition of it, and steps of one row by ``OneRowSteps.key``."""

    def __init__(self, shapes: Sequence[KvShape]) -> None:
        self._shapes = shapes
        self._repeated: RepeatedSteps | OneRowSteps | None = None
        self._one_row: dict[tuple[int, bool], OneRowSteps] = {}

    def repeat(self, inputs: PackedInputs) -> np.ndarray | None:
        """The logits [m, vocab] of a repetition of the last step; None, and nothing has run, if it is none."""
        repeated, self._repeated = self._repeated, None
        found = None if repeated is None else repeated.repeat(inputs)
        if found is not None:
            self._repeated = repeated
        return found

    def like(self, inputs: PackedInputs) -> np.ndarray | None:
        """The logits [tokens, vocab] of ``inputs``, of one row, after a step of the same kind; None, and nothing has
        run, if there was none."""
        steps = self._one_row.get(OneRowSteps.key(inputs))
        found = None if steps is None else steps.step(inputs)
        if found is not None:
            self._repeated = steps
        return found

    def remember(
        self,
        inputs: PackedInputs,
        run: PagedRun,
        session: PagedSession,
        logits: np.ndarray,
        pools: ArrayPools,
        deferred: tuple[DeferredStates, DeferredBatch] | None,
    ) -> None:
        """Prepare for steps like that of ``inputs``, of which ``run`` has run, if it is the only run."""
        if OneRowSteps.can_follow(inputs, run, session, self._shapes):
            like = OneRowSteps(inputs, session, logits, self._shapes, pools, deferred)
            self._one_row[OneRowSteps.key(inputs)] = self._repeated = like
        elif RepeatedSteps.can_repeat(inputs, run, session, self._shapes):
            self._repeated = RepeatedSteps(inputs, run, session, logits, self._shapes, pools)

    def forget_last(self) -> None:
        """The next step is no repetition."""
        self._repeated = None

    def forget(self) -> None:
        """Prepare for no step."""
        self._repeated = None
        self._one_row.clear()
