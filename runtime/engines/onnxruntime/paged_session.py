"""A session bound to the pools of a paged engine; only what changes from step to step is bound again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from artifact.errors import EngineError
from artifact.names import LOGITS, LOGITS_INDICES
from runtime.engines.onnxruntime.paged_pools import ArrayPools
from runtime.engines.onnxruntime.paged_rewrite import PagedGraph


class PagedSession:
    """One session. ``bind`` before the first ``run``, and whenever the pools are made anew."""

    def __init__(self, session: ort.InferenceSession, graph: PagedGraph, replaced_by: Mapping[str, str]) -> None:
        self._session, self._inputs, self._in_place = session, graph.inputs, graph.in_place
        self._replaced_by = replaced_by
        self._copied: list[tuple[np.ndarray, np.ndarray]] = []

    def bind(self, pools: ArrayPools) -> None:
        """Use the arrays of ``pools``; those that the graph cannot update in place get a second one."""
        self._io = self._session.io_binding()
        # Some versions of ONNX Runtime keep only the address.
        self._kept: list[object] = []
        self._copied = []
        for name, array in pools.arrays.items():
            value = self._value(array)
            if name in self._inputs:
                self._io.bind_ortvalue_input(name, value)
            if name not in self._in_place:
                other = np.empty_like(array)
                self._copied.append((array, other))
                value = self._value(other)
            self._io.bind_ortvalue_output(self._replaced_by[name], value)

    def run(self, feeds: Mapping[str, np.ndarray], logits_indices: np.ndarray, logits: np.ndarray) -> None:
        """Run on ``feeds``; ``logits`` [m, vocab] receives those of the tokens ``logits_indices`` [m] of the run.

        EngineError when ONNX Runtime fails.
        """
        values = []
        for name, array in {**feeds, LOGITS_INDICES: logits_indices}.items():
            if name in self._inputs:
                values.append(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
                self._io.bind_ortvalue_input(name, values[-1])
        self._io.bind_ortvalue_output(LOGITS, ort.OrtValue.ortvalue_from_numpy(logits))
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"ONNX Runtime failed in a step: {error}") from error
        for array, other in self._copied:
            array[...] = other

    def _value(self, array: np.ndarray) -> ort.OrtValue:
        assert array.flags.c_contiguous
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._kept += (array, value)
        return value
