"""The CUDA kernels of one operator, of dense or of packed rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.kernels import KernelRunner, layout_of, signature_of
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.spec import OpSpec


class PackedKernel:
    """Launches them; sizes that they refuse are remembered. ``kernels`` is None on a CPU."""

    def __init__(self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None) -> None:
        self._spec, self._attributes = spec, attributes
        self._kernels = kernels if spec.name in catalog.operators() else None
        self._name = (spec.name, tuple(attributes.items()))
        self._refused: set = set()

    def accepts(
        self, inputs: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor], rows: PackedRows | None = None
    ) -> bool:
        """Whether there are kernels for these sizes."""
        return self._launched(inputs, outputs, rows, run=False)

    def launch(
        self, inputs: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor], rows: PackedRows | None = None
    ) -> bool:
        """Run the kernels into ``outputs``; False if there are none for these sizes."""
        return self._launched(inputs, outputs, rows, run=True)

    def _launched(
        self,
        inputs: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor],
        rows: PackedRows | None,
        run: bool,
    ) -> bool:
        if self._kernels is None:
            return False
        key = (self._name, (*map(signature_of, inputs), *map(signature_of, outputs)), rows)
        if key in self._refused:
            return False

        def plan(traits: DeviceTraits) -> CallPlan:
            layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
            results = tuple(map(layout_of, outputs))
            return catalog.plan(OpCall(self._spec, layouts, results, self._attributes, rows), traits)

        try:
            if run:
                self._kernels.launch(key, plan, inputs, outputs)
            else:
                self._kernels.prepare(key, plan)
        except UnsupportedError:
            self._refused.add(key)
            return False
        return True
