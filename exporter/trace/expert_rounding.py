"""Rounded inputs of experts in the graph: rounded_experts in place of routed_experts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.exporter.trace.input_rounding import Initializer
from hybridge.exporter.weights.quantized import PlacedRounding
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.specs.rounded_experts import FP8, INT8, NVFP4, ROUNDED_EXPERTS, STATIC

_ROUNDINGS: Mapping[DType, str] = MappingProxyType({DType.INT8: INT8, DType.FLOAT8E4M3FN: FP8, DType.FLOAT4E2M1: NVFP4})
# Inputs of routed_experts: the weights of the two products.
_UP, _DOWN = 3, 4
_BIASES = 5


class RoundedExperts:
    """Collects how the products of experts round their inputs. ``initializer`` registers a stored tensor."""

    def __init__(self, graph: ir.Graph, initializer: Initializer) -> None:
        self._graph, self._initializer = graph, initializer
        self._found: dict[ir.Node, dict[int, tuple[str, PlacedRounding]]] = {}

    def add(self, weight: ir.Value, name: str, rounding: PlacedRounding) -> None:
        """The products of experts by ``weight``, which is called ``name``, round their inputs."""
        for node, index in weight.uses():
            if (node.domain, node.op_type) == (DOMAIN, "routed_experts"):
                self._found.setdefault(node, {})[index] = (name, rounding)

    def apply(self) -> None:
        """Replace the nodes of which both products round their inputs."""
        for node, found in self._found.items():
            if found.keys() == {_UP, _DOWN}:
                self._replace(node, found)

    def _replace(self, node: ir.Node, found: Mapping[int, tuple[str, PlacedRounding]]) -> None:
        rounding = found[_UP][1]
        group = STATIC if rounding.group is None else rounding.group
        experts = node.inputs[_UP]
        assert experts is not None and experts.shape is not None
        scales = [self._scale(*found[index], int(experts.shape[0])) for index in (_UP, _DOWN)]  # type: ignore[arg-type]
        new = ir.Node(
            DOMAIN,
            ROUNDED_EXPERTS.name,
            [*node.inputs[:_BIASES], *scales, *node.inputs[_BIASES:]],
            [
                *node.attributes.values(),
                ir.AttrString("rounding", _ROUNDINGS[rounding.dtype]),
                ir.AttrInt64("group", group),
            ],
            name=node.name,
        )
        old, output = node.outputs[0], new.outputs[0]
        output.name, output.shape, output.type = old.name, old.shape, old.type
        self._graph.insert_before(node, new)
        ir.convenience.replace_all_uses_with(old, output)
        self._graph.remove(node, safe=True)

    def _scale(self, name: str, rounding: PlacedRounding, experts: int) -> ir.Value:
        if rounding.scale is not None:
            return self._initializer(f"{name}.input_scale", rounding.scale)
        ones = f"{DOMAIN}.ones.{experts}"
        if ones not in self._graph.initializers:
            tensor = ir.tensor(np.ones(experts, np.float32), name=ones)
            value = ir.Value(name=ones, shape=ir.Shape([experts]), type=ir.TensorType(tensor.dtype), const_value=tensor)
            self._graph.register_initializer(value)
        return self._graph.initializers[ones]
