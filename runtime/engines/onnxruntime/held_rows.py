"""The rows of a step whose states were left as they were, until they are advanced or forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.held_memory import Bound, HeldMemory, bound
from hybridge.runtime.engines.onnxruntime.held_states import ACCEPTED, HeldState, advance_model, advanced_output
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.session import threaded_options
from hybridge.runtime.engines.packed_check import check_accepted

# Parts of the pools that are remembered as sessions take them.
_MOST_PARTS = 256


@dataclass(frozen=True, eq=False)
class HeldBatch:
    """Rows that share a run, in a step of ``of`` rows.

    rows [n]: their index in the step; slots [n]: of their states; counts [n]: their tokens.

    waits [n]: whether the row was asked to be held; the others advance by their one token, whatever comes.
    states: [n, ...] by pool, a part of it or, where slots have gaps between them, a copy. kept: what the tokens leave
    behind, [n, most tokens, ...] by name.
    """

    of: int
    rows: np.ndarray
    slots: np.ndarray
    counts: np.ndarray
    waits: np.ndarray
    states: Mapping[str, Bound]
    kept: Mapping[str, Bound]
    is_copy: bool


class HeldRows:
    """The batch of one step, and the session that advances its states."""

    def __init__(self, held: Sequence[HeldState], folder: Path, threads: int) -> None:
        """EngineError when ONNX Runtime refuses the graph."""
        self._held = tuple(held)
        options = threaded_options(threads)
        model = ir.to_proto(advance_model(self._held, installed_kernels())).SerializeToString()
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"{folder}: ONNX Runtime {ort.__version__} cannot advance its states: {error}") from error
        self._io = self._session.io_binding()
        kept = {name: shape for state in self._held for name, shape in state.kept}
        self._kept, self._right = HeldMemory(kept), HeldMemory(kept)
        self._copies = HeldMemory({state.pool: state.shape for state in self._held})
        self._parts: dict[tuple[int, int], Mapping[str, Bound]] = {}
        self._batch: HeldBatch | None = None
        # Whether rows of the batch that do not wait have not been advanced yet.
        self._owes = False

    @property
    def bytes_of_token(self) -> int:
        """Bytes that one token leaves behind."""
        return sum(4 * state.numbers_of_token for state in self._held)

    def bind(self, pools: ArrayPools) -> None:
        """Advance the states of ``pools`` from now on."""
        self.forget()
        self._pools = pools
        self._parts.clear()

    def forget(self) -> None:
        """A new step begins; states that were not advanced stay as they are."""
        self._batch, self._owes = None, False

    def batch(self, of: int, rows: np.ndarray, slots: np.ndarray, counts: np.ndarray, waits: np.ndarray) -> HeldBatch:
        """Memory for what a run of some rows, all [n], of a step of ``of`` leaves behind; slots in ascending order."""
        n, most = len(rows), int(counts.max())
        first, stop = int(slots[0]), int(slots[-1]) + 1
        is_copy = stop - first != n
        states = self._copied(slots) if is_copy else self._part(first, stop)
        return HeldBatch(of, rows, slots, counts, waits, states, self._kept.arrays(n, most), is_copy)

    def ran(self, batch: HeldBatch) -> None:
        """The run of ``batch`` has succeeded."""
        self._batch, self._owes = batch, not batch.waits.all()

    def settle(self) -> None:
        """Advance the rows that do not wait, unless they are already."""
        if self._batch is not None and self._owes:
            self._owes = False
            self._run(self._batch, np.where(self._batch.waits, 0, 1))

    def advance(self, accepted: np.ndarray) -> None:
        """Advance the states of each row that waits by its first ``accepted`` [rows] tokens; 0: not at all.

        EngineError when a number is not one of the row's tokens, or ONNX Runtime fails.
        """
        batch = self._batch
        counts = np.zeros(len(accepted) if batch is None else batch.of, np.int64)
        if batch is not None:
            counts[batch.rows] = np.where(batch.waits, batch.counts, 0)
        try:
            check_accepted(accepted.tolist(), counts.tolist())
        except EngineError:
            self.settle()
            self.forget()
            raise
        owed = int(self._owes)
        self.forget()
        if batch is not None:
            self._run(batch, np.where(batch.waits, accepted[batch.rows], owed))

    def _run(self, batch: HeldBatch, accepted: np.ndarray) -> None:
        """Advance row i of ``batch`` by ``accepted`` [n] of its tokens."""
        if not accepted.any():
            return
        for name, (_, value) in batch.states.items():
            self._io.bind_ortvalue_input(name, value)
            self._io.bind_ortvalue_output(advanced_output(name), value)
        for name, (_, value) in self._kept_by(batch, accepted).items():
            self._io.bind_ortvalue_input(name, value)
        counts, value = bound(accepted.astype(np.int64))
        self._io.bind_ortvalue_input(ACCEPTED, value)
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"ONNX Runtime failed to advance states: {error}") from error
        if batch.is_copy:
            moved = np.flatnonzero(counts)
            for name, (copy, _) in batch.states.items():
                self._pools.arrays[name][batch.slots[moved]] = copy[moved]

    def _kept_by(self, batch: HeldBatch, accepted: np.ndarray) -> Mapping[str, Bound]:
        """What the ``accepted`` [n] tokens left behind, [n, most of them, ...]; zeros where a row has fewer."""
        n, most = len(accepted), int(accepted.max())
        if n == 1:
            # The tokens of a single row begin with those that were accepted.
            return self._kept.arrays(1, most)
        right, others = self._right.arrays(n, most), np.arange(most) >= accepted[:, None]
        for name, (array, _) in right.items():
            array[...] = batch.kept[name][0][:, :most]
            array[others] = 0
        return right

    def _part(self, first: int, stop: int) -> Mapping[str, Bound]:
        if (first, stop) not in self._parts:
            if len(self._parts) == _MOST_PARTS:
                self._parts.clear()
            arrays = self._pools.arrays
            self._parts[first, stop] = {s.pool: bound(arrays[s.pool][first:stop]) for s in self._held}
        return self._parts[first, stop]

    def _copied(self, slots: np.ndarray) -> Mapping[str, Bound]:
        copies = self._copies.arrays(len(slots))
        for name, (copy, _) in copies.items():
            np.take(self._pools.arrays[name], slots, axis=0, out=copy)
        return copies
