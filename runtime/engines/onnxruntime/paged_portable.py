"""A paged artifact's file as it is on ONNX Runtime: its own operator functions, one call for a whole step.

Slower than OnnxRuntimePagedEngine, but every node is the file's own but for the widened types, matrix products, which
read the stored weights without transposing them, and the activations that activations.py replaces. Verify uses it to
show that the file carries its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import LOGITS
from hybridge.runtime.engines.inner_values import expose_values
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.paged_array_engine import PagedArrayEngine
from hybridge.runtime.engines.onnxruntime.rewrite import RewrittenGraph, widen_only
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.paged import PackedInputs


class PortablePagedEngine(PagedArrayEngine):
    """Runs a paged artifact's own graph, in float32, copying pools from step to step."""

    name: ClassVar[str] = "onnxruntime-portable"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; EngineError when the installed ONNX Runtime lacks its operators."""
        super().__init__(folder)
        self._threads = threads or 1
        self._weights = WeightStore(self._folder)
        self._values: tuple[str, ...] = ()
        self._session = self._open(())

    @property
    def shows_values(self) -> bool:
        return True

    def step(self, inputs: PackedInputs) -> np.ndarray:
        found = self.step_values(inputs, self._shown)
        if self._hidden is not None:
            self._hidden[: len(inputs.input_ids)] = found[self._shown[0]]
        return found[LOGITS]

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        check_packed(inputs, self.limits, self.config, self.pools.sizes)
        if tuple(values) != self._values:
            self._session, self._values = self._open(values), tuple(values)
        arrays = self.pools.arrays
        feeds = {field.name: getattr(inputs, field.name) for field in fields(inputs)} | dict(arrays)
        requested = {value.name for value in self._session.get_inputs()}
        names = [LOGITS, *self._replaced_by.values(), *values]
        try:
            results = self._session.run(names, {k: v for k, v in feeds.items() if k in requested})
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"ONNX Runtime failed in a step: {error}") from error
        found = dict(zip(names, results, strict=True))
        for name, replaced_by in self._replaced_by.items():
            arrays[name][...] = found.pop(replaced_by)
        return found

    def _open(self, values: Sequence[str]):  # type: ignore[no-untyped-def]  # ONNX Runtime ships no type hints
        model = widen_only(self._read_model(), installed_kernels())
        expose_values(model.graph, values)
        inputs = frozenset(str(value.name) for value in model.graph.inputs)
        graph = RewrittenGraph(model, inputs, frozenset(), {})
        return create_session(graph.serialised(), self._weights, self._folder, self._threads)
