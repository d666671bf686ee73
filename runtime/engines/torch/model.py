"""An artifact as programs: for steps of several tokens a row, for decoding, and to show inner values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.graph_check import check_graph
from hybridge.runtime.engines.inner_values import expose_values
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.fusion.linear import let_head_write_its_result
from hybridge.runtime.engines.torch.fusion.state_rings import RingLayer, ring_layers
from hybridge.runtime.engines.torch.program import Program, compile_program
from hybridge.runtime.engines.torch.weights import WeightStore
from hybridge.trt_plugins.rewrites.draft_slots import recurrent_pools


class TorchModel:
    """The programs of the artifact in ``folder``, made at their first use; they share all weights."""

    def __init__(
        self,
        folder: Path,
        config: RuntimeConfig,
        device: TorchDevice,
        file: str = MODEL_FILE,
        shared: WeightStore | None = None,
        takes_result: bool = False,
    ) -> None:
        """``file``: the graph. ``shared``: weights of another graph of the folder, which both use.

        takes_result: decoding is given the memory for its logits, as the input ``graph.RESULT``.

        ArtifactError for a damaged file.
        """
        self._folder, self._config, self._device, self._file = folder, config, device, file
        self._takes_result = takes_result
        self.weights = WeightStore(folder, device.torch, shared)
        self._programs: dict[tuple[Phase, tuple[str, ...], frozenset[str]], Program] = {}

    def program(self, phase: Phase, values: Sequence[str] = (), snapshots: frozenset[str] = frozenset()) -> Program:
        """The program of a step; inner ``values`` of the graph are outputs, too. ``snapshots``: as in ``fuse_graph``.

        EngineError naming an operator that this engine does not know, or a value that the graph does not have;
        ArtifactError for a graph that is damaged or of another artifact.
        """
        key = (phase, tuple(values), snapshots)
        if key not in self._programs:
            model = read_model(self._folder, self._file)
            check_graph(self._folder / self._file, model.graph, self._config.bindings)
            expose_values(model.graph, values)
            # On a CPU the merged weights would be in memory in addition to those of the file.
            fuse_graph(model, phase, merge=self._device.is_gpu, snapshots=snapshots)
            if phase is Phase.DECODE and self._takes_result and not values:
                let_head_write_its_result(model.graph)
            if phase is Phase.FEED:
                states = {spec.replaced_by for spec in self._config.bindings.states}
                self._programs[key] = self._compiled(model, [v for v in model.graph.outputs if v.name in states])
            else:
                self._programs[key] = self._compiled(model, model.graph.outputs)
        return self._programs[key]

    def pool_operators(self) -> dict[str, str]:
        """The recurrent operator that each pool of states belongs to."""
        return recurrent_pools(read_model(self._folder).graph)

    def ring_layers(self) -> tuple[RingLayer, ...]:
        """The recurrent operators whose states can have rings."""
        return tuple(ring_layers(read_model(self._folder, self._file).graph))

    def close(self) -> None:
        """Forget programs and weights; calling it twice is allowed."""
        self._programs.clear()
        self.weights = WeightStore(self._folder, self._device.torch)

    def _compiled(self, model: ir.Model, outputs: Sequence[ir.Value]) -> Program:
        with self._device.active():
            program = compile_program(model.graph.inputs, outputs, self.weights, self._device.kernels)
            self._device.synchronize()
        return program
