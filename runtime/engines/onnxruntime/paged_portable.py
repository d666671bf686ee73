"""A paged artifact's file as it is on ONNX Runtime: its own operator functions, one call for a whole step.

Slower than OnnxRuntimePagedEngine, but the nodes are those of the file, apart from wider types, matrix products, which
read the stored weights without transposing them, and the activations that activations.py replaces. Verify uses it to
show that the file is self-contained. For draft tokens the recurrent operators get slots for snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import LOGITS, STATE_INDICES
from hybridge.artifact.onnx_file import read_onnx
from hybridge.runtime.engines.inner_values import expose_values
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.model_file import gather_weights
from hybridge.runtime.engines.onnxruntime.paged_array_engine import PagedArrayEngine
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.rewrite import RewrittenGraph, widen_only
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs, draft_inputs
from hybridge.runtime.engines.rollback.modes import AUTO, SNAPSHOT, OperatorCost, chosen_modes
from hybridge.runtime.engines.rollback.rollback import Rollback, SnapshotSlots
from hybridge.trt_plugins.rewrites.draft_slots import recurrent_pools, with_snapshots

# Tokens of a row whose states can be deferred, as in the other engines.
_MOST_DEFERRED = 16


class PortablePagedEngine(PagedArrayEngine):
    """Runs a paged artifact's own graph, in float32, copying pools from step to step."""

    name: ClassVar[str] = "onnxruntime-portable"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; EngineError when the installed ONNX Runtime lacks its operators."""
        super().__init__(folder)
        self._threads = threads or 1
        self._weights = WeightStore(self._folder)
        self._recurrent = recurrent_pools(self._read_model().graph)
        self._values: tuple[str, ...] = ()
        self._session = self._open(())
        # The session for steps with deferred rows of up to ``_deferred_tokens`` tokens; opened by ``prepare_rollback``.
        self._draft_session: ort.InferenceSession | None = None
        self._deferred_tokens, self._rollback = 0, Rollback()

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._rollback.forget()
        super().allocate_pools(sizes)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def max_rollback_tokens(self) -> int:
        return _MOST_DEFERRED if self._recurrent else 0

    @property
    def rollback_token_bytes(self) -> int:
        return self.slot_bytes

    @property
    def rollback_modes(self) -> Mapping[str, str]:
        return dict.fromkeys(sorted(set(self._recurrent.values())), SNAPSHOT)

    def prepare_rollback(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        chosen_modes({operator: OperatorCost(0, None) for operator in self._recurrent.values()}, mode)
        self._deferred_tokens, self._draft_session, self._pools = tokens, None, None

    def advance(self, accepted: np.ndarray) -> None:
        self._rollback.advance(accepted.tolist())

    def step(self, inputs: PackedInputs) -> np.ndarray:
        found = self.step_values(inputs, tuple(self._shown))
        for name, values in self._shown.items():
            values[: len(inputs.input_ids)] = found[name]
        return found[LOGITS]

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        check_packed(inputs, self.limits, self.config, self.pools.sizes, self._deferred_tokens)
        self._rollback.forget()
        if tuple(values) != self._values:
            self._session, self._values, self._draft_session = self._open(values), tuple(values), None
        if inputs.deferred is None or not inputs.deferred.any():
            return self._run(self._session, inputs, values)
        if self._draft_session is None:
            self._draft_session = self._open(values, self._deferred_tokens)
        snapshots = SnapshotSlots(self.pools.first_snapshot, self._deferred_tokens)
        step, stored = draft_inputs(inputs, self._deferred_tokens, snapshots)
        found = self._run(self._draft_session, step, values)
        self._rollback.defer(stored.deferred, _Snapshots(self.pools, tuple(self._recurrent)))
        return found

    def _run(self, session: ort.InferenceSession, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        arrays = self.pools.arrays
        feeds = {field.name: getattr(inputs, field.name) for field in fields(inputs)} | dict(arrays)
        if isinstance(inputs, DraftInputs):
            feeds[STATE_INDICES] = inputs.snapshot_slots
        requested = {value.name for value in session.get_inputs()}
        names = [LOGITS, *self._replaced_by.values(), *values]
        try:
            results = session.run(names, {k: v for k, v in feeds.items() if k in requested})
        except Exception as error:  # ONNX Runtime has no common base class
            raise EngineError(f"ONNX Runtime failed in a step: {error}") from error
        found = dict(zip(names, results, strict=True))
        for name, replaced_by in self._replaced_by.items():
            arrays[name][...] = found.pop(replaced_by)
        return found

    def _snapshot_slots(self) -> Mapping[str, int]:
        return dict.fromkeys(self._recurrent, self.limits.max_rows * self._deferred_tokens)

    def _open(self, values: Sequence[str], deferred_tokens: int = 0) -> ort.InferenceSession:
        """``deferred_tokens``: maximum of a row, its own token and drafts, with a slot for the state after each."""
        model = self._with_slots(deferred_tokens - 1) if deferred_tokens else self._read_model()
        expose_values(model.graph, values)
        model = widen_only(model, installed_kernels())
        inputs = frozenset(str(value.name) for value in model.graph.inputs)
        graph = RewrittenGraph(model, inputs, frozenset(), {})
        return create_session(graph.serialised(), self._weights, self._folder, self._threads)

    def _with_slots(self, draft_tokens: int) -> ir.Model:
        model = ir.from_proto(with_snapshots(read_onnx(self._folder, self._model_file).model, draft_tokens))
        ir.external_data.set_base_dir(model.graph, self._folder)
        gather_weights(model)
        self._opened.check()
        return model


@dataclass(frozen=True)
class _Snapshots:
    """A ``RollbackMemory`` of the pools ``names``, whose operators are never replayed."""

    pools: ArrayPools
    names: tuple[str, ...]

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.copy_states(self.names, sources, targets)
