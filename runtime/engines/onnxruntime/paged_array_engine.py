"""Base of the paged engines over ONNX Runtime: the artifact, and pools in NumPy memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hybridge.artifact.kv_dtypes import filled_with
from hybridge.artifact.names import layer_output
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.hidden_rows import ArrayRows
from hybridge.runtime.engines.onnxruntime.opened_graph import OpenedGraph
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.states import engine_specs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.pooled import PackingEngine

if TYPE_CHECKING:
    import onnx_ir as ir


class PagedArrayEngine(PackingEngine[ArrayPools]):
    """The artifact and its pools; subclasses run the steps."""

    _model_file: ClassVar[str] = MODEL_FILE
    # More tokens at once make no step faster, but the scores of attention grow with tokens times context.
    _step_tokens = 512

    def __init__(self, folder: str | Path) -> None:
        self._opened = OpenedGraph(Path(folder).resolve(), self._model_file)
        super().__init__(folder)
        self._specs = engine_specs(self.config.bindings.states)
        self._replaced_by = {spec.name: str(spec.replaced_by) for spec in self._specs}
        # Inner values that every step writes: by name the buffer [tokens, hidden].
        self._shown: dict[str, np.ndarray] = {}

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._pools = None
        self._pools = ArrayPools(self._specs, self._pool_layouts(), sizes, self._snapshot_slots())

    @property
    def shows_hidden_states(self) -> bool:
        return True

    def show_hidden_states(self, reserved: int) -> ArrayRows:
        rows = ArrayRows(reserved, self.limits.max_tokens, self.config.hidden_size)
        self._show(rows.of_step)
        return rows

    def _show(self, hidden: np.ndarray) -> None:
        """Write the last layer's output for each token of a step to ``hidden``."""
        self._shown = {layer_output(self.config.num_hidden_layers - 1): hidden}

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.view(name)

    def fill_pools(self, value: float) -> None:
        for spec in self._specs:
            self.pools.view(spec.name)[...] = filled_with(value, spec.dtype)

    def _pool_layouts(self) -> Mapping[str, tuple[int, ...]]:
        """Pools that the sessions hold in another order of axes than declared."""
        return {}

    def _snapshot_slots(self) -> Mapping[str, int]:
        """By pool, slots for the states after draft tokens."""
        return {}

    def _read_model(self) -> ir.Model:
        # Imported late: with cached graphs onnx_ir is not needed, and importing it takes most of a second.
        from hybridge.runtime.engines.graph_check import check_graph
        from hybridge.runtime.engines.onnxruntime.model_file import read_model

        model = read_model(self._folder, self._model_file)
        check_graph(self._folder / self._model_file, model.graph, self.config.bindings)
        self._opened.check()
        return model
