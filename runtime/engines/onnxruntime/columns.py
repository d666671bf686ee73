"""Matrix products for a few rows, with the weight on the left.

FusedMatMul(x, weight) with 2 to 16 rows repacks the weight at each call and reads it at half of the memory's speed.
weight times x transposed packs x instead, which is small.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node

# Below this many elements the extra nodes cost more than they save.
SMALLEST_WEIGHT = 1 << 16


def put_weights_left(model: ir.Model) -> None:
    """Rewrite FusedMatMul(x, weight, transB=1) of a graph with one token per row: x is [b, 1, k] or [b, k]."""
    for node in list(model.graph):
        if node.op_type != "FusedMatMul":
            continue
        x, weight = node.inputs[0], node.inputs[1]
        x_shape, weight_shape = fixed_shape(x), fixed_shape(weight)
        if weight is None or not weight.is_initializer() or weight_shape is None or None in weight_shape:
            continue
        if x is None or x_shape is None or len(x_shape) not in (2, 3) or (len(x_shape) == 3 and x_shape[1] != 1):
            continue
        rows, columns = weight_shape[0] or 0, weight_shape[1] or 0
        if rows * columns < SMALLEST_WEIGHT:
            continue
        insert = Inserter(model.graph, node)
        flat = x if len(x_shape) == 2 else insert.reshape(x, 0, columns)
        product = insert.op("Transpose", insert.microsoft("FusedMatMul", weight, flat, transB=1), perm=[1, 0])
        replace_node(node, [product if len(x_shape) == 2 else insert.reshape(product, 0, 1, rows)])
