"""The artifact's file as it is on ONNX Runtime: its own operator functions, attention and padding.

Slower than OnnxRuntimeEngine, but the nodes are those of the file, apart from wider types, matrix products, which read
the stored weights without transposing them, and the activations that activations.py replaces. Verify uses it to show
that the file is self-contained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.bindings import MAX_SEQ
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.dense import StateSet, StepInputs
from hybridge.runtime.engines.inner_values import expose_values
from hybridge.runtime.engines.onnxruntime.array_engine import ArrayEngine, own_states
from hybridge.runtime.engines.onnxruntime.graph_form import natural_layouts
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.new_tokens import POSITIONS, new_positions, return_new_tokens
from hybridge.runtime.engines.onnxruntime.rewrite import RewrittenGraph, widen_only
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.weights import WeightStore

# Caches up to this length are fetched as a whole, which shows what the graph does to every position.
WHOLE_CACHE = 1024


class PortableEngine(ArrayEngine):
    """Runs an artifact's own graph, in float32, copying states from step to step.

    Of caches with more than ``WHOLE_CACHE`` positions only a step's new tokens are copied.
    """

    name: ClassVar[str] = "onnxruntime-portable"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; EngineError when the installed ONNX Runtime lacks its operators."""
        super().__init__(folder)
        self._threads = threads or 1
        self._weights = WeightStore(self._folder)
        self._layouts = natural_layouts(self._specs)
        self._caches = tuple(spec for spec in self._specs if MAX_SEQ in spec.shape)
        self._form: tuple[tuple[str, ...], bool] = ((), True)
        self._session = self._open()

    @property
    def shows_values(self) -> bool:
        return True

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        return self.step_values(inputs, states, ())[self.config.result.name]

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        own = own_states(states)
        whole = own.max_seq <= WHOLE_CACHE or not self._caches
        if self._form != (tuple(values), whole):
            self._form = (tuple(values), whole)
            self._session = self._open()
        feeds = {
            INPUT_IDS: inputs.input_ids,
            CONTEXT_LENGTHS: inputs.context_lengths,
            PAST_LENGTHS: inputs.past_lengths,
            POSITIONS: new_positions(inputs.past_lengths, inputs.input_ids.shape[1], own.max_seq),
        }
        feeds |= {name: buffer.past for name, buffer in own.buffers.items()}
        requested = {value.name for value in self._session.get_inputs()}
        names = [self.config.result.name, *self._replaced_by.values(), *values]
        found = dict(
            zip(names, self._session.run(names, {k: v for k, v in feeds.items() if k in requested}), strict=True)
        )
        partly = () if whole else {spec.name for spec in self._caches}
        for name, buffer in own.buffers.items():
            new = found.pop(self._replaced_by[name])
            if name not in partly:
                buffer.past[...] = new
                continue
            for row, (past, count) in enumerate(zip(inputs.past_lengths, inputs.context_lengths, strict=True)):
                buffer.past[row, :, past : past + count] = new[row, :, :count]
        return found

    def _open(self):  # type: ignore[no-untyped-def]  # ONNX Runtime ships no type hints
        """A session of the current form: its inner values, and whether it returns whole caches."""
        values, whole = self._form
        model = self._read_model()
        expose_values(model.graph, values)
        model = widen_only(model, installed_kernels())
        if not whole:
            return_new_tokens(model.graph, self._caches)
        inputs = frozenset(str(value.name) for value in model.graph.inputs)
        return create_session(
            RewrittenGraph(model, inputs, frozenset(), self._layouts).serialised(),
            self._weights,
            self._folder,
            self._threads,
            keeps_order=not whole,
        )
