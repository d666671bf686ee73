"""Small tools for editing an onnx_ir graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from hybridge.runtime.engines.onnxruntime.kernels import MICROSOFT
from hybridge.trt_plugins.catalog import DENSE_VERSION, spec_of
from hybridge.trt_plugins.spec import AttributeValue


class Inserter:
    """Creates nodes in front of one node of a graph."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self.graph, self._before = graph, before

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """Insert a node; returns its output value, or a tuple of them when ``outputs`` > 1."""
        node = ir.node(op_type, inputs, attributes or None, domain=domain, num_outputs=outputs)
        self.graph.insert_before(self._before, node)
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def microsoft(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """Insert a node of ONNX Runtime's own domain."""
        return self.op(op_type, *inputs, domain=MICROSOFT, outputs=outputs, **attributes)

    def constant(self, value: np.ndarray) -> ir.Value:
        """An initializer that holds ``value``; equal constants of one graph are shared."""
        shared: dict[tuple, ir.Value] = self.graph.meta.setdefault("constants", {})
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in shared:
            shared[key] = add_initializer(self.graph, f"engine.constant_{len(shared)}", value)
        return shared[key]

    def array(self, value: np.ndarray) -> ir.Value:
        """As ``constant``; the name that trt_plugins.e4m3 uses."""
        return self.constant(value)

    def ints(self, *values: int) -> ir.Value:
        """A one-dimensional int64 constant."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: int) -> ir.Value:
        """An int64 constant without axes."""
        return self.constant(np.array(value, np.int64))

    def input(self, name: str) -> ir.Value:
        """The graph input ``name``."""
        return next(value for value in self.graph.inputs if value.name == name)

    def input_or(self, name: str, default: ir.Value) -> ir.Value:
        """The graph input ``name``; ``default`` in a graph without it."""
        return next((value for value in self.graph.inputs if value.name == name), default)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of one axis as an int64 tensor of one element."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def shape(self, *sizes: int | ir.Value) -> ir.Value:
        """A shape of numbers and of sizes known at run time only."""
        return self.op("Concat", *(self.ints(s) if isinstance(s, int) else s for s in sizes), axis=0)

    def reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        """Reshape; 0 keeps the input's size of that axis, -1 is inferred."""
        reshaped = self.op("Reshape", value, self.ints(*shape))
        if value.shape is not None and -1 not in shape:
            known = value.shape.dims
            reshaped.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            reshaped.shape = ir.Shape([size if size else known[axis] for axis, size in enumerate(shape)])
        return reshaped


def add_initializer(graph: ir.Graph, name: str, value: np.ndarray) -> ir.Value:
    """Register ``value`` as initializer ``name``."""
    tensor = ir.tensor(value, name=name)
    initializer = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(value.shape), const_value=tensor)
    graph.register_initializer(initializer)
    return initializer


def add_input(graph: ir.Graph, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    """Append a graph input, or return the one of that name."""
    for value in graph.inputs:
        if value.name == name:
            return value
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    graph.inputs.append(value)
    return value


def replace_node(node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Let ``values`` take the place of the outputs of ``node`` (names of graph outputs included); remove it."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for old, new in zip(node.outputs, values, strict=True):
        new.type, new.shape = old.type or new.type, old.shape or new.shape
        name, is_output = old.name, old.is_graph_output()
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        if is_output or new.name is None:
            old.name = None
            new.name = name
    graph.remove(node, safe=True)


def remove_dead_code(model: ir.Model) -> None:
    """Remove nodes, initializers, functions and opset imports that nothing uses; graph inputs stay."""
    common_passes.RemoveUnusedNodesPass()(model)
    common_passes.RemoveUnusedFunctionsPass()(model)


def fixed_shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The sizes of ``value`` (None where symbolic), or None when its rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape.dims)


def op_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """All attributes of a node of domain ``trt_edgellm``, defaults filled in."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    imports = node.graph.opset_imports if node.graph is not None else {}
    return spec_of(node.op_type, imports.get(node.domain, DENSE_VERSION)).complete_attributes(given)


def state_pairs(model: ir.Model, replaced_by: dict[str, str]) -> list[tuple[ir.Value, ir.Value]]:
    """(input, output) values of the states; ``replaced_by`` maps input names to output names."""
    outputs = {value.name: value for value in model.graph.outputs}
    return [(value, outputs[replaced_by[value.name]]) for value in model.graph.inputs if value.name in replaced_by]
