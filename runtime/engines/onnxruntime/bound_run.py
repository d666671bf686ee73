"""One session bound to one slice of the states: everything that repeated steps of one shape can reuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnxruntime as ort

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.onnxruntime.graph_form import LAST_POSITIONS, LONGEST_CONTEXT
from hybridge.runtime.engines.onnxruntime.row_runs import RowRun
from hybridge.runtime.engines.onnxruntime.states import ArrayStateSet


class FormSession:
    """A session of one graph form and what its states allow."""

    def __init__(self, session: ort.InferenceSession, inputs: frozenset[str], in_place: frozenset[str]) -> None:
        self.session, self.inputs, self.in_place = session, inputs, in_place


class BoundRun:
    """Inputs, states and logits of one run in memory that the session uses directly.

    logits [rows, vocab] float32, or [rows, tokens, vocab] with all logits, is the graph's output ``result``,
    overwritten by each run. ``last_logits`` are views of it: [vocab] after the one token of each row. The states
    ``swapped`` are in their other arrays after a run, which the caller commits. EngineError when ONNX Runtime fails.
    """

    def __init__(
        self,
        form: FormSession,
        states: ArrayStateSet,
        replaced_by: dict[str, str],
        run: RowRun,
        logits: np.ndarray,
        result: str,
        inner_values: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self._form, self.run, self.logits = form, run, logits
        self.last_logits = [row if row.ndim == 1 else row[-1] for row in logits]
        self.swapped = frozenset(states.buffers) - form.in_place
        self._io = form.session.io_binding()
        self._alive: list[object] = []
        self._ids = np.zeros((run.rows, run.tokens), np.int64)
        self._past = np.zeros(run.rows, np.int32)
        # A single token is the last one.
        self._last = self._past if run.tokens == 1 else np.zeros(run.rows, np.int32)
        self._longest = np.zeros(1, np.int32)
        self._plain_ids, self._plain_past = self._ids.ravel().data, self._past.data
        self._plain_longest = self._longest.data
        self._bind_input(INPUT_IDS, self._ids)
        self._context = np.full(run.rows, run.tokens, np.int32)
        self._bind_input(CONTEXT_LENGTHS, self._context)
        self._bind_input(PAST_LENGTHS, self._past)
        self._bind_input(LAST_POSITIONS, self._last)
        self._bind_input(LONGEST_CONTEXT, self._longest)
        self._bind_output(result, logits)
        for name, array in inner_values.items():
            self._bind_output(name, array)
        for name, buffer in states.buffers.items():
            past = buffer.past[run.start : run.stop]
            self._bind_input(name, past)
            present = past if name in form.in_place else buffer.other[run.start : run.stop]
            self._bind_output(replaced_by[name], present)

    def feed(self, ids: np.ndarray, context: np.ndarray, past: np.ndarray) -> None:
        """Run on the first ``context`` [rows] tokens of ``ids`` [rows, tokens] after ``past`` [rows] tokens."""
        self._ids[...] = ids
        self._context[...] = context
        self._past[...] = past
        self._last[...] = past + context - 1
        self._longest[0] = (past + context).max()
        self._execute()

    def decode(self, tokens: Sequence[int], past: Sequence[int]) -> None:
        """Run on one token per row after ``past`` tokens each.

        A memoryview takes an integer in a tenth of the time that a NumPy array takes when neither is in the caches.
        """
        for row, token in enumerate(tokens):
            self._plain_ids[row] = token
            self._plain_past[row] = past[row]
        self._plain_longest[0] = max(past) + 1
        self._execute()

    def _execute(self) -> None:
        try:
            self._form.session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime has no common base class
            raise EngineError(f"ONNX Runtime failed in a step: {error}") from error

    def _bind_input(self, name: str, array: np.ndarray) -> None:
        if name in self._form.inputs:
            self._io.bind_ortvalue_input(name, self._value(array))

    def _bind_output(self, name: str, array: np.ndarray) -> None:
        self._io.bind_ortvalue_output(name, self._value(array))

    def _value(self, array: np.ndarray) -> ort.OrtValue:
        assert array.flags.c_contiguous
        value = ort.OrtValue.ortvalue_from_numpy(array)
        # Some versions of ONNX Runtime store only the address, so keep a reference.
        self._alive += (array, value)
        return value
