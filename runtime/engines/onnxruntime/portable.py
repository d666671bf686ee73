"""The artifact's file as it is on ONNX Runtime: its own operator functions, its own attention, padding and all.

Slower than OnnxRuntimeEngine, but every node is the file's own but for the widened types and for matrix products,
which read the stored weights without transposing them. Verify uses it to show that the file carries its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from artifact.bindings import Binding
from artifact.config import RuntimeConfig, read_config
from artifact.errors import EngineError
from artifact.names import CONTEXT_LENGTHS, INPUT_IDS, LOGITS, PAST_LENGTHS
from runtime.engines.base import Engine, StateSet, StepInputs
from runtime.engines.onnxruntime.inner_values import expose_values
from runtime.engines.onnxruntime.kernels import installed_kernels
from runtime.engines.onnxruntime.rewrite import GraphForm, RewrittenGraph, natural_layouts, widen_only
from runtime.engines.onnxruntime.session import create_session
from runtime.engines.onnxruntime.states import ArrayStateSet, engine_specs
from runtime.engines.onnxruntime.weights import WeightStore

MODEL_FILE = "model.onnx"


class PortableEngine(Engine):
    """Runs an artifact's own graph, in float32, copying states from step to step."""

    name: ClassVar[str] = "onnxruntime-portable"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; EngineError when the installed ONNX Runtime lacks its operators."""
        self._folder = Path(folder).resolve()
        self._threads = threads or 1
        self.config: RuntimeConfig = read_config(self._folder)
        self._specs = engine_specs(self.config.bindings.states)
        model = ir.load(self._folder / MODEL_FILE)
        self._weights = WeightStore(model, self._folder)
        self._layouts = natural_layouts(self._specs)
        self._values: tuple[str, ...] = ()
        self._session = self._open(())

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return self._specs

    @property
    def max_batch_size(self) -> int:
        return self.config.max_batch_size

    @property
    def max_seq_len(self) -> int:
        return self.config.max_seq_len

    def allocate_states(self, batch: int, max_seq: int) -> ArrayStateSet:
        return ArrayStateSet(self._specs, self._layouts, batch, max_seq, self.max_seq_len)

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        return self.step_values(inputs, states, ())[LOGITS]

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        if not isinstance(states, ArrayStateSet):
            raise EngineError(f"expected states allocated by this engine, found {type(states).__name__}")
        if tuple(values) != self._values:
            self._session, self._values = self._open(values), tuple(values)
        present = {s.name: str(s.replaced_by) for s in self._specs}
        feeds = {
            INPUT_IDS: inputs.input_ids,
            CONTEXT_LENGTHS: inputs.context_lengths,
            PAST_LENGTHS: inputs.past_lengths,
        }
        feeds |= {name: buffer.past for name, buffer in states.buffers.items()}
        wanted = {value.name for value in self._session.get_inputs()}
        names = [LOGITS, *present.values(), *values]
        found = dict(zip(names, self._session.run(names, {k: v for k, v in feeds.items() if k in wanted}), strict=True))
        for name, buffer in states.buffers.items():
            buffer.past[...] = found.pop(present[name])
        return found

    def _open(self, values: Sequence[str]):  # type: ignore[no-untyped-def]  # ONNX Runtime ships no type hints
        model = widen_only(ir.load(self._folder / MODEL_FILE), installed_kernels())
        expose_values(model, values)
        inputs = frozenset(str(value.name) for value in model.graph.inputs)
        return create_session(
            RewrittenGraph(model, GraphForm.GENERAL, inputs, frozenset(), self._layouts),
            self._weights,
            self._folder,
            self._threads,
        )
