"""Chains of element by element operators that torch has one kernel for: SiLU and softplus."""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.grouped_norm import silu_argument
from hybridge.runtime.engines.torch.graph import constant_floats, fuse, is_inner, producer

# Where torch's exported softplus goes over to the identity, like F.softplus.
_THRESHOLD = 20.0


def fuse_elementwise(graph: ir.Graph) -> None:
    """Make one node of every v * sigmoid(v), and of every softplus that the exporter has decomposed."""
    for node in list(graph):
        if node.graph is None or node.domain != "":
            continue
        output = node.outputs[0]
        if node.op_type == "Mul":
            argument = silu_argument(output)
            if argument is not None and any(is_inner(v) and producer(v, "Sigmoid") for v in node.inputs):
                fuse([output], "Silu", [argument], {})
        elif node.op_type == "Where":
            argument = _softplus_argument(node)
            if argument is not None:
                fuse([output], "Softplus", [argument], {}, domain="")


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
