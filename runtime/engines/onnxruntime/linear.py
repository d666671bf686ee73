"""Linear layers in the form that reads weights at memory speed.

A weight is in the checkpoint as [out, in]. The exporter writes MatMul(x, Transpose(weight)); ONNX Runtime would
fold the Transpose into a copy of the weight. FusedMatMul(transB=1) reads the weight as it is, so it can stay
mapped from the file, and is as fast as the packed form for one token and for many.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node


def use_stored_weights(model: ir.Model) -> None:
    """Replace MatMul and Gemm over a transposed initializer by forms that read the initializer itself."""
    for node in list(model.graph):
        if node.domain or node.op_type not in ("MatMul", "Gemm"):
            continue
        transposed = node.inputs[1]
        weight = _transposed_initializer(transposed)
        if transposed is None or weight is None:
            continue
        if node.op_type == "MatMul":
            product = Inserter(model.graph, node).microsoft("FusedMatMul", node.inputs[0], weight, transB=1)
            replace_node(node, [product])
        elif not _int_attribute(node, "transB"):
            node.replace_input_with(1, weight)
            node.attributes["transB"] = ir.AttrInt64("transB", 1)
        _remove_unused(model.graph, transposed)


def _transposed_initializer(value: ir.Value | None) -> ir.Value | None:
    """The matrix whose Transpose ``value`` is, if that matrix is an initializer."""
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "Transpose" or producer.domain:
        return None
    source = producer.inputs[0]
    if source is None or not source.is_initializer() or source.shape is None or len(source.shape) != 2:
        return None
    permutation = producer.attributes.get("perm")
    return source if permutation is None or list(permutation.as_ints()) == [1, 0] else None


def _remove_unused(graph: ir.Graph, transposed: ir.Value) -> None:
    """Remove the Transpose that nothing reads any more: later passes see who else reads its weight."""
    transpose = transposed.producer()
    if transpose is not None and not transposed.uses() and not transposed.is_graph_output():
        graph.remove(transpose, safe=True)


def _int_attribute(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else 0
