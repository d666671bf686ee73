"""Deferred rows of a step, whose states have not changed: their stored tokens, and the session that replays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.deferred_states import (
    ACCEPTED,
    DeferredState,
    advanced_output,
    replay_model,
)
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.row_arrays import Bound, RowArrays, bound
from hybridge.runtime.engines.onnxruntime.session import register_cpu_library, threaded_options
from hybridge.runtime.engines.rollback.rollback import DeferredRows, Rollback, SnapshotSlots

# Parts of pools, as values for sessions, and replays that are cached.
_MOST_PARTS, _MOST_REPLAYS = 256, 64


@dataclass(frozen=True, eq=False)
class DeferredBatch:
    """Rows that share a run, in ascending order of their slots.

    states: [n, ...] by pool, a part of it or, where slots have gaps between them, a copy. stored: what the tokens leave
    behind, [n, most tokens, ...] by name; snapshots are in their pools. memory: that of what is stored, by identity.
    """

    rows: DeferredRows
    states: Mapping[str, Bound]
    stored: Mapping[str, Bound]
    is_copy: bool
    memory: object


@dataclass(frozen=True, eq=False)
class _BoundReplay:
    """Replays of rows with these states and stored values; accepted [n] is read by each. value: holds its memory."""

    io: ort.IOBinding
    states: Mapping[str, Bound]
    stored: Mapping[str, Bound]
    accepted: np.ndarray
    value: ort.OrtValue


class DeferredStates:
    """The batch of one step, and the session that replays its tokens; a ``RollbackMemory``."""

    def __init__(self, states: Sequence[DeferredState], folder: Path, threads: int) -> None:
        """EngineError when ONNX Runtime refuses the graph."""
        self._states = tuple(states)
        self._replayed = tuple(state for state in states if not state.is_snapshot)
        # Name and shape of the output of each pool that has snapshots.
        self._snapshots = {
            pool.name: stored
            for state in states
            if state.is_snapshot
            for pool, stored in zip(state.pools, state.stored, strict=True)
        }
        self._replayed_pools = [pool.name for state in self._replayed for pool in state.pools]
        if self._replayed:
            self._session = _replay_session(self._replayed, folder, threads)
        stored = {name: shape for state in self._replayed for name, shape in state.stored}
        self._stored, self._accepted = RowArrays(stored), RowArrays(stored)
        pools = [pool for state in self._states for pool in state.pools_read]
        dtypes = {pool.name: pool.dtype.numpy for pool in pools}
        self._copies = RowArrays({pool.name: pool.shape for pool in pools}, dtypes)
        self._parts: dict[tuple[int, int], Mapping[str, Bound]] = {}
        self._snapshot_parts: dict[tuple[int, int], Mapping[str, Bound]] = {}
        self._batch: DeferredBatch | None = None
        # By number of rows, first slot and most accepted tokens of a row.
        self._replays: dict[tuple[int, int, int], _BoundReplay] = {}
        self.rollback = Rollback()

    @property
    def token_bytes(self) -> int:
        """Bytes stored per token of a deferred row."""
        return sum(state.token_bytes for state in self._states)

    def bind(self, pools: ArrayPools) -> None:
        """Set the pools whose states are advanced."""
        self.rollback.forget()
        self._pools = pools
        self._parts.clear()
        self._snapshot_parts.clear()
        self._replays.clear()

    def batch(
        self, step_rows: int, rows: np.ndarray, slots: np.ndarray, counts: np.ndarray, waits: np.ndarray
    ) -> DeferredBatch:
        """Memory for a run of some rows, all [n], of a step of ``step_rows``; slots in ascending order."""
        n, most = len(rows), int(counts.max())
        first, stop = int(slots[0]), int(slots[-1]) + 1
        is_copy = stop - first != n
        states = self._copied(slots) if is_copy else self._part(first, stop)
        snapshots = SnapshotSlots(self._pools.first_snapshot, most) if self._snapshots else None
        stored = self._stored.arrays(n, most)
        if snapshots is not None:
            stored = {**stored, **self._snapshot_part(n, most)}
        deferred = DeferredRows(step_rows, rows, counts, slots, waits, snapshots)
        return DeferredBatch(deferred, states, stored, is_copy, self._stored.memory)

    def keeps(self, batch: DeferredBatch) -> bool:
        """Whether a step may use ``batch`` again: its memory has not been replaced by larger one."""
        return batch.memory is self._stored.memory

    def ran(self, batch: DeferredBatch) -> None:
        """Record that the run of ``batch`` has succeeded."""
        self._batch = batch
        self.rollback.defer(batch.rows, self)

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """As ``RollbackMemory.advance``, of the rows of the last batch; EngineError when ONNX Runtime fails."""
        assert self._batch is not None
        if self._replayed:
            self._replay(self._batch, np.array(accepted, np.int64))
        self._pools.copy_states(self._snapshots, sources, targets)

    def _replay(self, batch: DeferredBatch, accepted: np.ndarray) -> None:
        found = self._stored_by(batch, accepted)
        replay = self._bound_replay(batch, found, int(accepted.max()))
        replay.accepted[...] = accepted
        try:
            self._session.run_with_iobinding(replay.io)
        except Exception as error:  # ONNX Runtime has no common base class
            raise EngineError(f"ONNX Runtime failed to advance states: {error}") from error
        if batch.is_copy:
            moved = np.flatnonzero(accepted)
            for name in self._replayed_pools:
                self._pools.arrays[name][batch.rows.slots[moved]] = batch.states[name][0][moved]

    def _bound_replay(self, batch: DeferredBatch, stored: Mapping[str, Bound], most: int) -> _BoundReplay:
        """The session bound to the states of ``batch`` and to what at most ``most`` tokens of a row ``stored``."""
        key = len(batch.rows.slots), int(batch.rows.slots[0]), most
        found = self._replays.get(key)
        if found is not None and found.states is batch.states and found.stored is stored:
            return found
        if len(self._replays) == _MOST_REPLAYS:
            self._replays.clear()
        io = self._session.io_binding()
        for name in (pool.name for state in self._replayed for pool in state.pools_read):
            io.bind_ortvalue_input(name, batch.states[name][1])
        for name in self._replayed_pools:
            io.bind_ortvalue_output(advanced_output(name), batch.states[name][1])
        for name, (_, value) in stored.items():
            io.bind_ortvalue_input(name, value)
        accepted, value = bound(np.zeros(key[0], np.int64))
        io.bind_ortvalue_input(ACCEPTED, value)
        self._replays[key] = _BoundReplay(io, batch.states, stored, accepted, value)
        return self._replays[key]

    def _stored_by(self, batch: DeferredBatch, accepted: np.ndarray) -> Mapping[str, Bound]:
        """Values stored by the ``accepted`` [n] tokens, [n, most of them, ...]; zeros where a row has fewer."""
        n, most = len(accepted), int(accepted.max())
        if n == 1:
            # A single row's accepted tokens come first.
            return self._stored.arrays(1, most)
        found, others = self._accepted.arrays(n, most), np.arange(most) >= accepted[:, None]
        for name, (array, _) in found.items():
            array[...] = batch.stored[name][0][:, :most]
            array[others] = 0
        return found

    def _part(self, first: int, stop: int) -> Mapping[str, Bound]:
        if (first, stop) not in self._parts:
            if len(self._parts) == _MOST_PARTS:
                self._parts.clear()
            arrays = self._pools.arrays
            names = [pool.name for state in self._states for pool in state.pools_read]
            self._parts[first, stop] = {name: bound(arrays[name][first:stop]) for name in names}
        return self._parts[first, stop]

    def _copied(self, slots: np.ndarray) -> Mapping[str, Bound]:
        copies = self._copies.arrays(len(slots))
        for name, (copy, _) in copies.items():
            np.take(self._pools.arrays[name], slots, axis=0, out=copy)
        return copies

    def _snapshot_part(self, n: int, most: int) -> Mapping[str, Bound]:
        """Slots to which a run of ``n`` rows of up to ``most`` tokens writes the state after each token."""
        if (n, most) not in self._snapshot_parts:
            first = self._pools.first_snapshot
            self._snapshot_parts[n, most] = {
                name: bound(self._pools.arrays[pool][first : first + n * most].reshape(n, most, *shape))
                for pool, (name, shape) in self._snapshots.items()
            }
        return self._snapshot_parts[n, most]


def _replay_session(states: Sequence[DeferredState], folder: Path, threads: int) -> ort.InferenceSession:
    model, options = replay_model(states, installed_kernels()), threaded_options(threads)
    if CPU_DOMAIN in model.graph.opset_imports:
        register_cpu_library(options)
    try:
        proto = ir.to_proto(model).SerializeToString()
        return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no common base class
        raise EngineError(f"{folder}: ONNX Runtime {ort.__version__} cannot advance its states: {error}") from error
