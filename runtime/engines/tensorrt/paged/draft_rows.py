"""Rows of a step whose states are deferred, and how the engine rolls them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import draft_inputs
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.engines.rollback.rollback import DeferredRows, Rollback, SnapshotRows, SnapshotSlots
from hybridge.runtime.engines.tensorrt.paged.advance_engine import AdvanceSteps
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools
from hybridge.runtime.engines.tensorrt.paged.step_arrays import ShapedArrays
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_parts import StepPart


class DraftRows:
    """The mode is the one that the engine was built for. advance_steps: of the second engine, which replays; or None.

    snapshots: slots behind those of every pool of states, for the states after draft tokens.
    """

    def __init__(self, bindings: StepBindings, advance_steps: AdvanceSteps | None, snapshots: int) -> None:
        self.advance_steps, self.snapshots = advance_steps, snapshots
        self._bindings, self._rollback = bindings, Rollback()

    @property
    def mode(self) -> str:
        """The mode of all recurrent operators."""
        return SNAPSHOT if self.advance_steps is None else REPLAY

    @property
    def token_bytes(self) -> int:
        """Memory that a token of a deferred row takes."""
        if self.advance_steps is not None:
            return sum(binding.unit_bytes for binding in self._bindings.stored)
        states = [pool.spec for pool in self._bindings.pools if not pool.spec.grows]
        return sum(spec.unit_bytes for spec in states) if self._bindings.drafts else 0

    def check(self, rows: int, tokens: int, mode: str | Mapping[str, str]) -> None:
        """EngineError unless the engine was built for ``rows`` deferred rows of ``tokens`` tokens in that mode."""
        most_rows, most = self._bindings.buckets[-1], self._bindings.row_tokens
        if tokens > most or rows > most_rows:
            raise EngineError(
                f"expected at most {most_rows} rows of {most} tokens, for which the engine was built, found {rows} of "
                f"{tokens}: build it with a larger `speculative_tokens`"
            )
        requested = {mode} if isinstance(mode, str) else set(mode.values())
        if not requested <= {AUTO, self.mode}:
            raise EngineError(
                f"expected the mode {self.mode!r}, for which the engine was built, found {mode!r}: build it with "
                "another `draft_states`"
            )

    def inputs(self, part: StepPart, pools: DevicePools) -> tuple[PackedInputs, DeferredRows | None]:
        """The inputs of ``part`` in the form of the engine's graph, and the rows whose states it defers."""
        inputs = part.inputs
        if not self._bindings.drafts:
            return inputs, None
        most = self._bindings.row_tokens
        defers = np.zeros(len(inputs.seq_lens), bool) if inputs.deferred is None else inputs.deferred
        slots = SnapshotSlots(pools.sizes.num_slots, most)
        step, stored = draft_inputs(replace(inputs, deferred=defers), most, slots)
        return step, stored.deferred if defers.any() else None

    def defer(
        self, deferred: DeferredRows, part: StepPart, step_rows: int, arrays: ShapedArrays, pools: DevicePools
    ) -> None:
        """``part`` of a step of ``step_rows`` rows runs, with ``arrays``."""
        whole = replace(deferred, step_rows=step_rows, rows=part.rows[deferred.rows])
        if self.advance_steps is None:
            self._rollback.defer(whole, SnapshotRows(pools))
        else:
            self.advance_steps.defer(deferred, arrays, pools)
            self._rollback.defer(whole, self.advance_steps)

    def advance(self, accepted: np.ndarray) -> None:
        """As ``PagedEngine.advance``, once the step is done."""
        self._rollback.advance(accepted.tolist())

    def forget(self) -> None:
        """A new step begins."""
        self._rollback.forget()

    def release(self) -> None:
        """Release what is bound to pools that are about to be freed."""
        self._rollback.forget()
        if self.advance_steps is not None:
            self.advance_steps.forget()
