"""Base of both ONNX Runtime engines: an artifact folder with float32 states in NumPy memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.artifact.bindings import Binding
from hybridge.artifact.errors import EngineError
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.dense import DenseEngine, StateSet, read_dense_config
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout
from hybridge.runtime.engines.onnxruntime.opened_graph import OpenedGraph
from hybridge.runtime.engines.onnxruntime.states import ArrayStateSet, engine_specs

if TYPE_CHECKING:
    import onnx_ir as ir


class ArrayEngine(DenseEngine):
    """The artifact, its limits and its states; subclasses run the steps.

    ``_layouts`` is how the engine's graphs hold each state; the engine sets it.
    """

    _layouts: Mapping[str, StateLayout]

    def __init__(self, folder: str | Path) -> None:
        """ArtifactError when ``folder`` is not a complete artifact, EngineError when its layout is not dense."""
        self._folder = Path(folder).resolve()
        self._opened = OpenedGraph(self._folder)
        self.config = read_dense_config(Path(folder))
        self._specs = engine_specs(self.config.bindings.states)
        self._replaced_by = {spec.name: str(spec.replaced_by) for spec in self._specs}

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return self._specs

    def allocate_states(self, batch: int, max_seq: int) -> ArrayStateSet:
        self.check_batch(batch)
        return ArrayStateSet(self._specs, self._layouts, batch, max_seq, self.max_seq_len)

    def _read_model(self) -> ir.Model:
        # Imported late: with cached graphs onnx_ir is not needed, and importing it takes most of a second.
        from hybridge.runtime.engines.graph_check import check_graph
        from hybridge.runtime.engines.onnxruntime.model_file import read_model

        model = read_model(self._folder)
        check_graph(self._folder / MODEL_FILE, model.graph, self.config.bindings)
        self._opened.check()
        return model


def own_states(states: StateSet) -> ArrayStateSet:
    """``states`` if an engine of this kind allocated them; EngineError otherwise."""
    if not isinstance(states, ArrayStateSet):
        raise EngineError(f"expected states allocated by this engine, found {type(states).__name__}")
    return states
