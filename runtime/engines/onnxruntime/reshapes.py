"""Remove Reshapes that only undo each other."""

from __future__ import annotations

import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import replace_node

# Operators that give the elements of their first input in their order.
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def remove_idle_reshapes(model: ir.Model) -> None:
    """Let users of a Reshape read the value it began as, where a chain of Reshapes leads back to that shape."""
    for node in list(model.graph):
        if node.op_type != "Reshape" or node.domain or node.outputs[0].is_graph_output():
            continue
        origin = _origin_of_shape(node)
        if origin is not None:
            replace_node(node, [origin])


def _origin_of_shape(node: ir.Node) -> ir.Value | None:
    shape = node.outputs[0].shape
    value = node.inputs[0]
    while value is not None and shape is not None:
        if value.shape is not None and _same(value.shape, shape):
            return value
        producer = value.producer()
        if producer is None or producer.op_type not in _RESHAPES or producer.domain:
            return None
        value = producer.inputs[0]
    return None


def _same(first: ir.Shape, second: ir.Shape) -> bool:
    """Equal sizes, by number or by name; a size without either equals nothing."""
    if len(first) != len(second):
        return False
    names = [[size if isinstance(size, int) else size.value for size in shape] for shape in (first, second)]
    return None not in names[0] and names[0] == names[1]
