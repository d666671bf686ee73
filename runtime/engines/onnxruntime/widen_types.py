"""Compute in float32 what the artifact declares as float16 or bfloat16.

ONNX Runtime's CPU provider lacks kernels for most operators in these types. Widening is exact, and intermediate
results are no longer rounded. Casts that have no effect any more are removed. The weights themselves are widened at
load (weights.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.weights import widened

NARROW_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Attributes that hold the number of an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision", "stash_type")


def widen_types(model: ir.Model) -> None:
    """Rewrite all types, constants and type attributes of ``model``, its functions and subgraphs."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        _widen_values((*graph.inputs, *graph.initializers.values()))
        for node in graph.all_nodes():
            _widen_values(node.outputs)
            for name, attribute in list(node.attributes.items()):
                replacement = _widened_attribute(name, attribute)
                if replacement is not None:
                    node.attributes[name] = replacement
    _remove_idle_casts(model.graph)


def _widen_values(values: Iterable[ir.Value]) -> None:
    for value in values:
        if isinstance(value.type, ir.TensorType) and value.type.dtype in NARROW_TYPES:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        tensor = value.const_value
        if tensor is not None and tensor.dtype in NARROW_TYPES and not isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.tensor(widened(tensor.numpy()), name=tensor.name)


def _widened_attribute(name: str, attribute: ir.Attr) -> ir.Attr | None:
    if attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.INT and name in _TYPE_ATTRIBUTES and attribute.value in NARROW_TYPES:
        return ir.AttrInt64(name, int(ir.DataType.FLOAT))
    if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in NARROW_TYPES:
        return ir.AttrTensor(name, ir.tensor(widened(attribute.value.numpy())))
    return None


def _remove_idle_casts(graph: ir.Graph) -> None:
    for node in list(graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source.dtype is None or source.dtype != node.attributes["to"].as_int():
            continue
        if result.is_graph_output():
            # The output's name must survive; a value that is itself an interface keeps its own.
            if source.producer() is None or source.is_graph_output():
                continue
            result.name, source.name = f"{result.name}.cast", result.name
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
