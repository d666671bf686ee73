"""The rows of a step whose states were left as they were, until they are advanced or forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from artifact.errors import EngineError
from runtime.engines.onnxruntime.held_states import HeldState, advance_model, advanced_output
from runtime.engines.onnxruntime.paged_pools import ArrayPools
from runtime.engines.onnxruntime.session import threaded_options
from runtime.engines.packed_check import check_accepted


@dataclass(frozen=True)
class HeldRow:
    """What the ``count`` tokens of a row left behind: kept [1, count, ...] by name; slot: of its states.

    accepted: the first of these tokens, by their number, as a session takes them.
    """

    slot: int
    count: int
    kept: Mapping[str, np.ndarray]
    accepted: dict[int, list[tuple[str, ort.OrtValue]]] = field(default_factory=dict)


class HeldRows:
    """Rows of one step by their index in it, and the session that advances their states."""

    def __init__(self, held: Sequence[HeldState], folder: Path, threads: int) -> None:
        """EngineError when ONNX Runtime refuses the graph."""
        self._held = tuple(held)
        options = threaded_options(threads)
        model = ir.to_proto(advance_model(self._held)).SerializeToString()
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"{folder}: ONNX Runtime {ort.__version__} cannot advance its states: {error}") from error
        self._io = self._session.io_binding()
        self._rows: dict[int, HeldRow] = {}
        # By tokens of a row, and by how many rows of a step had them before.
        self._buffers: dict[tuple[int, int], HeldRow] = {}
        self._states: dict[int, list[tuple[HeldState, ort.OrtValue]]] = {}

    @property
    def bytes_of_token(self) -> int:
        """Bytes that one token leaves behind."""
        return sum(4 * state.numbers_of_token for state in self._held)

    def bind(self, pools: ArrayPools) -> None:
        """Advance the states of ``pools`` from now on."""
        self.forget()
        self._pools = pools
        self._states.clear()

    def forget(self) -> None:
        """A new step begins; states that were not advanced stay as they are."""
        self._rows.clear()

    def hold(self, row: int, slot: int, count: int) -> HeldRow:
        """Memory for what ``row`` of this step leaves behind."""
        key = (count, sum(held.count == count for held in self._rows.values()))
        if key not in self._buffers:
            kept = [pair for state in self._held for pair in state.kept]
            arrays = {name: np.empty((1, count, *shape), np.float32) for name, shape in kept}
            self._buffers[key] = HeldRow(slot, count, arrays)
        self._rows[row] = replace(self._buffers[key], slot=slot)
        return self._rows[row]

    def advance(self, accepted: np.ndarray) -> None:
        """Advance the states of each row by its first ``accepted`` [rows] tokens; 0: not at all.

        EngineError when a number is not one of the row's tokens, or ONNX Runtime fails.
        """
        rows, self._rows = self._rows, {}
        check_accepted(accepted, np.array([rows[row].count if row in rows else 0 for row in range(len(accepted))]))
        for row, held in rows.items():
            if accepted[row]:
                self._run(held, int(accepted[row]))

    def _run(self, row: HeldRow, accepted: int) -> None:
        for state, place in self._states_of(row.slot):
            self._io.bind_ortvalue_input(state.pool, place)
            self._io.bind_ortvalue_output(advanced_output(state.pool), place)
        for name, tokens in self._tokens_of(row, accepted):
            self._io.bind_ortvalue_input(name, tokens)
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"ONNX Runtime failed to advance states: {error}") from error

    def _states_of(self, slot: int) -> list[tuple[HeldState, ort.OrtValue]]:
        if slot not in self._states:
            arrays = self._pools.arrays
            self._states[slot] = [(s, _value(arrays[s.pool][slot].reshape(s.shape))) for s in self._held]
        return self._states[slot]

    def _tokens_of(self, row: HeldRow, accepted: int) -> list[tuple[str, ort.OrtValue]]:
        if accepted not in row.accepted:
            row.accepted[accepted] = [(name, _value(array[:, :accepted])) for name, array in row.kept.items()]
        return row.accepted[accepted]


def _value(array: np.ndarray) -> ort.OrtValue:
    """``array``, which its owner keeps, as a session takes it."""
    assert array.flags.c_contiguous
    return ort.OrtValue.ortvalue_from_numpy(array)
