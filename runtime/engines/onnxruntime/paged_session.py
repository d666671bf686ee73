"""A session bound to the pools of a paged engine; only inputs that change between steps are bound again."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import LOGITS, LOGITS_INDICES
from hybridge.runtime.engines.onnxruntime.graph_form import CHECKPOINT_LENGTHS, checkpoint_output
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.session_graph import PagedGraph

if TYPE_CHECKING:
    from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredBatch
    from hybridge.runtime.engines.onnxruntime.deferred_states import DeferredState


class RowCheckpoints(NamedTuple):
    """lengths [n] int32: numbers of a row's tokens, ascending; slots [n]: receive the states after these."""

    lengths: np.ndarray
    slots: np.ndarray


NO_CHECKPOINTS = RowCheckpoints(np.empty(0, np.int32), np.empty(0, np.int32))
_NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})
_NOT_FED = np.empty(0, bool), None


class PagedSession:
    """One session. ``bind`` before the first ``run``, and whenever the pools are allocated again."""

    def __init__(self, session: ort.InferenceSession, graph: PagedGraph, replaced_by: Mapping[str, str]) -> None:
        self._session, self._inputs, self._in_place = session, graph.inputs, graph.in_place
        self._part_names, self._replaced_by = graph.parts, replaced_by
        self._deferred = graph.deferred
        self._runs = 0

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the graph's inputs."""
        return self._inputs

    @property
    def deferred(self) -> tuple[DeferredState, ...]:
        """The states that the graph leaves unchanged."""
        return self._deferred

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the graph returns states after other tokens than the last."""
        return CHECKPOINT_LENGTHS in self._inputs

    @property
    def is_repeatable(self) -> bool:
        """Whether ``run_again`` may follow the last run: all that the graph writes was bound in place."""
        return self._is_repeatable

    @property
    def runs(self) -> int:
        """Number of calls of ``run``: while it stays the same, ``run_again`` runs what the last of them bound."""
        return self._runs

    def fed(self, name: str) -> np.ndarray:
        """The array that the session read as input ``name`` in its last run."""
        return self._fed[name][0]

    def bind(self, pools: ArrayPools) -> None:
        """Use the arrays of ``pools``; those that the graph cannot update in place get a second one."""
        self._io = self._session.io_binding()
        self._fed: dict[str, tuple[np.ndarray, ort.OrtValue | None]] = {}
        # Some versions of ONNX Runtime store only the address, so keep a reference.
        self._bound: list[object] = []
        self._copied = [
            self._bind_pool(n, a, self._bound) for n, a in pools.arrays.items() if n not in self._part_names
        ]
        self._parts = {name: array for name, array in pools.arrays.items() if name in self._part_names}
        self._ranges = pools.ranges
        self._bound_range: tuple[int, int] | None = None
        self._is_repeatable = False
        # The states and stored values of the last batch, by identity.
        self._deferred_bound: tuple[object, object] = None, None
        self._most_checkpoints = -1
        self._checkpoints: dict[str, np.ndarray] = {}
        # First slot, -1 for ``_checkpoints``, and number of the checkpoints that are bound.
        self._bound_checkpoints: tuple[int, int] | None = None
        self._range_values: Mapping[str, ort.OrtValue] = {}
        self._checkpoint_values: object = None

    def run(
        self,
        feeds: Mapping[str, np.ndarray],
        logits_indices: np.ndarray,
        logits: np.ndarray,
        slots: slice,
        deferred: DeferredBatch | None = None,
        shown: Mapping[str, np.ndarray] = _NOTHING,
        checkpoints: RowCheckpoints = NO_CHECKPOINTS,
    ) -> None:
        """Run on ``feeds``; ``logits`` [m, vocab] receives those of the tokens ``logits_indices`` [m] of the run.

        slots: those of the rows, for a graph that gets only these. deferred: for a graph that leaves the states
        unchanged, these states, and arrays for the stored values of its tokens. shown: arrays for the inner values that
        the graph returns. checkpoints: the states that it also returns, for a graph that ``takes_checkpoints``.
        EngineError when ONNX Runtime fails.
        """
        values: list[object] = []
        copied, self._is_repeatable = self._copied, False
        self._runs += 1
        if deferred is None:
            copied = [*copied, *self._bind_range(slots, values)]
        else:
            self._bind_deferred(deferred)
        for name, array in feeds.items():
            if name in self._inputs:
                self.feed(name, array)
        if LOGITS_INDICES in self._inputs:
            self.feed(LOGITS_INDICES, logits_indices)
        for name, array in {**shown, LOGITS: logits}.items():
            self._io.bind_ortvalue_output(name, _value(array, values))
        returned = self._bind_checkpoints(checkpoints) if self.takes_checkpoints else {}
        self._last_values = values
        self._execute()
        for name, states in returned.items():
            self._parts[name][checkpoints.slots] = states
        for array, other in copied:
            if other is not array:
                array[...] = other
        read_copies = deferred is not None and deferred.is_copy
        self._is_repeatable = not (shown or read_copies) and all(other is array for array, other in copied)

    def run_again(self) -> None:
        """Run with everything as bound for the last run; the arrays of ``fed`` may have other numbers.

        The logits are overwritten. ``is_repeatable`` must hold. EngineError when ONNX Runtime fails.
        """
        self._execute()

    def _execute(self) -> None:
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime has no common base class
            raise EngineError(f"ONNX Runtime failed in a step: {error}") from error

    def feed(self, name: str, array: np.ndarray) -> None:
        """Bind a copy of ``array`` as input ``name``, or overwrite the bound copy if that has its shape."""
        fed, _ = self._fed.get(name, _NOT_FED)
        if fed.shape == array.shape and fed.dtype == array.dtype:
            fed[...] = array
            return
        fed = np.array(array, order="C")
        value = ort.OrtValue.ortvalue_from_numpy(fed)
        self._io.bind_ortvalue_input(name, value)
        self._fed[name] = fed, value

    def _bind_pool(self, name: str, array: np.ndarray, bound: list[object]) -> tuple[np.ndarray, np.ndarray]:
        """``array``, and the one that the session writes its next value to."""
        written = array if name in self._in_place else np.empty_like(array)
        if name in self._inputs:
            self._io.bind_ortvalue_input(name, _value(array, bound))
        self._io.bind_ortvalue_output(self._replaced_by[name], _value(written, bound))
        return array, written

    def _bind_range(self, slots: slice, bound: list[object]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Bind the states in contiguous slots, as ``_bind_pool`` does."""
        key = slots.start, slots.stop
        if key != self._bound_range:
            self._range_values = self._ranges.values(*key)
            for name, value in self._range_values.items():
                if name not in self._parts or name not in self._in_place:
                    continue
                if name in self._inputs:
                    self._io.bind_ortvalue_input(name, value)
                self._io.bind_ortvalue_output(self._replaced_by[name], value)
            self._bound_range = key
        return [self._bind_pool(n, a[slots], bound) for n, a in self._parts.items() if n not in self._in_place]

    def _bind_checkpoints(self, checkpoints: RowCheckpoints) -> dict[str, np.ndarray]:
        """Bind what receives the states of ``checkpoints``: their slots, if these are adjacent and in order; else
        arrays by pool, which are returned, and which the next run uses again."""
        self.feed(CHECKPOINT_LENGTHS, checkpoints.lengths)
        n, slots = len(checkpoints.slots), checkpoints.slots.tolist()
        first = slots[0] if slots and slots == list(range(slots[0], slots[0] + n)) else -1
        if first < 0 and n > self._most_checkpoints:
            self._checkpoints = {name: np.empty((n, *pool.shape[1:]), pool.dtype) for name, pool in self._parts.items()}
            self._most_checkpoints, self._bound_checkpoints = n, None
        states = {} if first >= 0 else {name: array[:n] for name, array in self._checkpoints.items()}
        if self._bound_checkpoints != (first, n):
            self._bound_checkpoints, bound = (first, n), list[object]()
            values = self._ranges.values(first, first + n) if first >= 0 else {}
            for name in self._parts:
                value = values[name] if first >= 0 else _value(states[name], bound)
                self._io.bind_ortvalue_output(checkpoint_output(name), value)
            self._checkpoint_values = values, bound
        return states

    def _bind_deferred(self, batch: DeferredBatch) -> None:
        """The states to read, and the arrays that receive what the tokens store."""
        states, stored = self._deferred_bound
        if batch.states is not states:
            for name, (_, value) in batch.states.items():
                self._io.bind_ortvalue_input(name, value)
        if batch.stored is not stored:
            for name, (_, value) in batch.stored.items():
                self._io.bind_ortvalue_output(name, value)
        self._deferred_bound = batch.states, batch.stored


def _value(array: np.ndarray, bound: list[object]) -> ort.OrtValue:
    """``array`` as a value for the session; ``bound`` has to live as long as the session uses it."""
    assert array.flags.c_contiguous
    value = ort.OrtValue.ortvalue_from_numpy(array)
    bound += (array, value)
    return value
