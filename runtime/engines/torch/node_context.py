"""Properties of a node for the row of the operator table that makes its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.attributes import Attributes
from hybridge.runtime.engines.torch.graph import constant_ints
from hybridge.runtime.engines.torch.kernels import KernelRunner

# Takes the node's tensors in order, without those read as constants; gives its outputs.
Run = Callable[..., Any]


class NodeContext:
    """One node while its step is made.

    device: where the step's tensors are. kernels: what launches CUDA kernels there, None on a CPU.
    """

    def __init__(self, node: ir.Node, device: torch.device, kernels: KernelRunner | None) -> None:
        self.node, self.device, self.kernels = node, device, kernels
        self.attributes = Attributes(node)
        self._constants: set[int] = set()

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def version(self) -> int:
        """Version of the operator's domain that the graph imports."""
        graph = self.node.graph
        return 1 if graph is None else graph.opset_imports.get(self.node.domain, 1)

    def ints(self, index: int) -> tuple[int, ...]:
        """The integers of input ``index``, which the step then does not get; EngineError unless they are constant."""
        inputs = self.node.inputs
        found = constant_ints(inputs[index]) if index < len(inputs) else None
        if found is None:
            raise EngineError(
                f"{self.op_type}: the torch engine needs constants as input {index}, found none: "
                "use `engine='onnxruntime'`"
            )
        self._constants.add(index)
        return found

    @property
    def inputs(self) -> list[ir.Value | None]:
        """The inputs that the step gets."""
        return [value for index, value in enumerate(self.node.inputs) if index not in self._constants]

    def is_in_place(self, output: int, source: int) -> bool:
        """Whether output ``output`` replaces the state that input ``source`` is, which nothing else reads."""
        value = self.node.inputs[source]
        assert value is not None
        return value.is_graph_input() and len(list(value.uses())) == 1 and self.node.outputs[output].is_graph_output()


Builder = Callable[[NodeContext], Run]
