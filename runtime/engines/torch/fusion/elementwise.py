"""Chains of element by element operators that torch has one kernel for."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.grouped_norm import silu_argument
from hybridge.runtime.engines.torch.graph import constant_floats, fuse, is_constant, is_inner, producer, rank

# Where torch's exported softplus goes over to the identity, like F.softplus.
_THRESHOLD = 20.0
_NARROW = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16)


def fuse_elementwise(graph: ir.Graph) -> None:
    """Make one node of every v * sigmoid(v), of every softplus that the exporter has decomposed, of a + b * c, and of
    a sum in float32 with the change of type before it.
    """
    for node in list(graph):
        if node.graph is None or node.domain != "":
            continue
        output = node.outputs[0]
        if node.op_type == "Mul":
            argument = silu_argument(output)
            if argument is not None and any(is_inner(v) and producer(v, "Sigmoid") for v in node.inputs):
                fuse([output], "Silu", [argument], {})
        elif node.op_type == "Add":
            _fuse_sum(node)
        elif node.op_type == "Where":
            argument = _softplus_argument(node)
            if argument is not None:
                fuse([output], "Softplus", [argument], {}, domain="")


def _fuse_sum(add: ir.Node) -> None:
    for value, other in (add.inputs, reversed(add.inputs)):
        product, cast = producer(value, "Mul"), producer(value, "Cast")
        if other is None or value is None or value.dtype != other.dtype or not is_inner(value):
            continue
        if value.dtype not in (ir.DataType.FLOAT, *_NARROW):
            continue
        if product is not None and not any(is_constant(each) for each in (other, *product.inputs)):
            fuse([add.outputs[0]], "MulAdd", [other, *product.inputs], {})
            return
        # torch makes float32 of both, where both have axes.
        if cast is not None and value.dtype == ir.DataType.FLOAT and rank(value) and rank(other):
            narrow = cast.inputs[0]
            if narrow is not None and narrow.dtype in _NARROW:
                fuse([add.outputs[0]], "Add", [narrow, other], {}, domain="")
                return


def _softplus_argument(where: ir.Node) -> ir.Value | None:
    """x of where(x > 20, x, softplus(x))."""
    x, softplus, condition = (
        where.inputs[1],
        producer(where.inputs[2], "Softplus"),
        producer(where.inputs[0], "Greater"),
    )
    if x is None or softplus is None or condition is None:
        return None
    same = softplus.inputs[0] is x and condition.inputs[0] is x
    return x if same and constant_floats(condition.inputs[1]) == (_THRESHOLD,) else None
