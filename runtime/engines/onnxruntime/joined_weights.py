"""Weights that are in several tensors of the artifact's files, or in another order than a kernel needs.

A checkpoint with one tensor for each matrix of each expert is exported as a Concat and a Reshape of them. ONNX Runtime
would constant-fold these inside the model, which cannot hold more than 2 GB. Here they become one initializer,
which the weight store fills from the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.quantized_weights import placeholder, quantized_matrix
from hybridge.runtime.engines.onnxruntime.session_graph import WHOLE, Part, stored_tensor

_META = "engine.joined_weight"


@dataclass(frozen=True)
class JoinedWeight:
    """The ``parts`` of an initializer [experts, rows, columns], in order.

    interleaved: rows of the first and the second half of each expert alternate.
    form, block: as in GraphWeight; ``shape`` has the columns of that form.
    """

    parts: tuple[Part, ...]
    shape: tuple[int, int, int]
    interleaved: bool = False
    form: str = WHOLE
    block: int = 0


def join_weights(model: ir.Model) -> None:
    """Replace every Concat and Reshape of whole weights in the main graph by one initializer of the same name."""
    graph = model.graph
    for node in list(graph):
        if node.op_type == "Reshape" and quantized_matrix(node.inputs[0]) is not None:
            _stack_rows(graph, node)
        if node.op_type != "Concat" or node.domain or not all(_is_weight(value) for value in node.inputs):
            continue
        whole = next((user for user, _ in node.outputs[0].uses()), None)
        result = None if whole is None or whole.op_type != "Reshape" else whole.outputs[0]
        if whole is None or result is None or result.shape is None:
            continue
        parts = [value for value in node.inputs if value is not None]
        stored = parts[0].dtype
        shape = tuple(size for size in result.shape.dims if isinstance(size, int))
        assert len(shape) == 3 and result.name is not None and stored is not None
        name, result.name = result.name, None
        joined = add_joined(graph, name, JoinedWeight(tuple(part_of(value) for value in parts), shape), stored)
        ir.convenience.replace_all_uses_with(result, joined)
        graph.remove([whole, node], safe=True)
        for value in parts:
            if not value.uses():
                del graph.initializers[str(value.name)]


def _stack_rows(graph: ir.Graph, reshape: ir.Node) -> None:
    """Replace ``reshape``, which makes [experts, rows, columns] of one quantised matrix, by an initializer."""
    rows, result = reshape.inputs[0], reshape.outputs[0]
    shape = tuple(size for size in (() if result.shape is None else result.shape.dims) if isinstance(size, int))
    assert rows is not None and rows.dtype is not None and len(shape) == 3 and result.name is not None
    name, result.name = result.name, None
    joined = add_joined(graph, name, JoinedWeight((part_of(rows),), shape), rows.dtype)
    ir.convenience.replace_all_uses_with(result, joined)
    graph.remove(reshape, safe=True)
    if not rows.uses():
        del graph.initializers[str(rows.name)]


def add_joined(graph: ir.Graph, name: str, joined: JoinedWeight, dtype: ir.DataType) -> ir.Value:
    """An initializer ``name`` that the weight store fills; the one that is there already, if any."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = placeholder(graph, name, joined.parts[0].location, joined.shape, dtype)
    value.meta[_META] = joined
    return value


def joined_weight(value: ir.Value) -> JoinedWeight | None:
    """The parts from which the weight store builds ``value``; None for an initializer that is a stored tensor."""
    joined = value.meta.get(_META)
    return joined if isinstance(joined, JoinedWeight) else None


def interleaved_weight(graph: ir.Graph, weight: ir.Value) -> ir.Value | None:
    """An initializer with the interleaved rows of ``weight`` [experts, rows, columns]; None if that is not a weight."""
    joined = joined_weight(weight)
    if joined is None:
        tensor, dims = weight.const_value, weight.shape.dims if weight.shape is not None else ()
        shape = tuple(size for size in dims if isinstance(size, int))
        if not isinstance(tensor, ir.ExternalTensor) or len(shape) != 3:
            return None
        joined = JoinedWeight((part_of(weight),), shape)
    # The type of the placeholder is that of the graph, which may have been widened by now.
    dtype = weight.dtype or ir.DataType.FLOAT
    return add_joined(graph, f"{weight.name}.interleaved", replace(joined, interleaved=True), dtype)


def part_of(value: ir.Value) -> Part:
    """An initializer of a whole weight, as a part."""
    tensor = value.const_value
    assert isinstance(tensor, ir.ExternalTensor)
    return quantized_matrix(value) or stored_tensor(tensor)


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and isinstance(value.const_value, ir.ExternalTensor)
