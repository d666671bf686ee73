"""Rewrites zero points of quantised weights, which TensorRT does not support, as a second product.

With blocks of g columns, weight = s (q - z) gives x · weightᵀ = x · (s q)ᵀ - (block sums of x) · (s z)ᵀ: the packed
numbers q stay, and the second product has a matrix [rows, columns / g].
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from hybridge.artifact.errors import EngineError


def without_zero_points(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` without zero points in DequantizeLinear; ``model`` itself if there are none.

    EngineError: a product has an input of unknown rank.
    """
    if not any(node.op_type == "DequantizeLinear" and len(node.input) > 2 for node in model.graph.node):
        return model
    found = ir.from_proto(model)
    for node in list(found.graph):
        if node.op_type == "DequantizeLinear" and not node.domain and len(node.inputs) > 2:
            _lower(_Insertion(found.graph, node), node)
    return ir.to_proto(found)


class _Insertion:
    """Inserts nodes into ``graph`` whose outputs are named after the output of ``node``."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph, self._prefix, self._count = graph, f"{node.outputs[0].name}.offsets", 0

    def op(
        self, place: ir.Node, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None, **attributes: int
    ) -> ir.Value:
        """The output of a new node, inserted before the node ``place``."""
        node = ir.node(op_type, list(inputs), attributes or None)
        output = node.outputs[0]
        output.name, output.type = f"{self._prefix}.{self._count}", ir.TensorType(dtype or ir.DataType.FLOAT)
        self._count += 1
        self.graph.insert_before(place, node)
        return output

    def ints(self, place: ir.Node, *values: int) -> ir.Value:
        """A constant int64 vector, inserted before the node ``place``."""
        return self.op(place, "Constant", dtype=ir.DataType.INT64, value_ints=list(values))  # type: ignore[arg-type]


def _lower(insertion: _Insertion, node: ir.Node) -> None:
    """Remove the zero points of ``node``, which dequantises a weight, and subtract their effect elsewhere."""
    weight, scales, zeros = node.outputs[0], node.inputs[1], node.inputs[2]
    assert scales is not None and zeros is not None and scales.shape is not None
    one = insertion.op(node, "Constant", dtype=ir.DataType.FLOAT, value_float=1.0)  # type: ignore[arg-type]
    wide = insertion.op(node, "DequantizeLinear", zeros, one, dtype=ir.DataType.FLOAT)
    as_float = insertion.op(node, "Cast", scales, dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    offsets = insertion.op(node, "Mul", wide, as_float, dtype=ir.DataType.FLOAT)
    node.resize_inputs(2)
    users = [user for user, _ in weight.uses()]
    if len(users) == 1 and users[0].op_type == "Cast":
        weight = users[0].outputs[0]
        users = [user for user, _ in weight.uses()]
    assert weight.dtype is not None
    offsets = insertion.op(node, "Cast", offsets, dtype=weight.dtype, to=int(weight.dtype))
    if all(_is_product(user) for user in users):
        for user in users:
            for product, _ in tuple(user.outputs[0].uses()):
                _correct(insertion, product, offsets, len(scales.shape), node.attributes.get_int("block_size", 0))
    else:
        _subtract(insertion, weight, offsets, len(scales.shape), node.attributes.get_int("block_size", 0))


def _is_product(node: ir.Node) -> bool:
    """Whether ``node`` transposes a weight and only products read the result."""
    readers = [user for user, _ in node.outputs[0].uses()]
    return node.op_type == "Transpose" and all(user.op_type == "MatMul" and not user.domain for user in readers)


def _correct(insertion: _Insertion, product: ir.Node, offsets: ir.Value, axes: int, block: int) -> None:
    """Subtract (block sums of x) · offsetsᵀ from x · weightᵀ; ``axes``: the rank of ``offsets``."""
    x, output = product.inputs[0], product.outputs[0]
    if x is None or x.shape is None or x.dtype is None:
        raise EngineError(f"{product.name}: expected an input of known rank, found none: export the checkpoint again")
    if block:
        blocks = x.shape[-1]
        assert isinstance(blocks, int)
        split = insertion.ints(product, *(0 for _ in x.shape[:-1]), blocks // block, block)
        parts = insertion.op(product, "Reshape", x, split, dtype=x.dtype)
        sums = insertion.op(product, "ReduceSum", parts, insertion.ints(product, -1), dtype=x.dtype, keepdims=0)
    else:
        sums = insertion.op(product, "ReduceSum", x, insertion.ints(product, -1), dtype=x.dtype, keepdims=1)
    if axes == 2:
        transposed = insertion.op(product, "Transpose", offsets, dtype=x.dtype, perm=[1, 0])  # type: ignore[arg-type]
        taken = insertion.op(product, "MatMul", sums, transposed, dtype=x.dtype)
    else:
        taken = insertion.op(product, "Mul", sums, offsets, dtype=x.dtype)
    _replace(insertion, output, taken)


def _subtract(insertion: _Insertion, weight: ir.Value, offsets: ir.Value, axes: int, block: int) -> None:
    """Subtract ``offsets`` from the weight itself, as other nodes than products read it."""
    assert weight.shape is not None
    node = weight.producer()
    assert node is not None
    rows, columns = (int(size) for size in weight.shape.numpy())
    spread = offsets
    if axes:
        spread = insertion.op(node, "Unsqueeze", offsets, insertion.ints(node, -1), dtype=weight.dtype)
    if block:
        sizes = insertion.ints(node, rows, columns // block, block)
        spread = insertion.op(node, "Expand", spread, sizes, dtype=weight.dtype)
        spread = insertion.op(node, "Reshape", spread, insertion.ints(node, rows, columns), dtype=weight.dtype)
    _replace(insertion, weight, spread)


def _replace(insertion: _Insertion, value: ir.Value, taken: ir.Value) -> None:
    """Replace ``value`` for all its readers by ``value`` - ``taken``, under the same name."""
    producer = value.producer()
    assert producer is not None
    difference = ir.node("Sub", [taken, taken])
    result = difference.outputs[0]
    result.shape, result.type = value.shape, value.type
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    result.name, value.name = value.name, f"{value.name}.without_offsets"
    difference.replace_input_with(0, value)
    insertion.graph.insert_after(producer, difference)
