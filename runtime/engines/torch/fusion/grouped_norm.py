"""Mamba2's norm, gated and in groups of channels, as one GroupedNorm node.

    x [Cast to float32] * silu(gate [Cast]) -> [Reshape to groups] RMSNormalization by ones [Reshape] -> [Cast] * weight

GroupedNorm has the inputs x, weight and gate (absent where x is gated already) and the attributes epsilon and group.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.graph import constant_floats, fuse, is_constant, is_inner, producer, rank, skip

GROUPED_NORM = "GroupedNorm"


def fuse_grouped_norms(graph: ir.Graph) -> None:
    """Make one node of every grouped norm."""
    for node in list(graph):
        if (node.domain, node.op_type) == ("", "Mul") and node.graph is not None:
            _fuse(node)


def _fuse(product: ir.Node) -> None:
    for normed, weight in (product.inputs, reversed(product.inputs)):
        if not is_constant(weight) or rank(weight) != 1:
            continue
        inner = skip(skip(normed, "Cast"), "Reshape")
        norm = producer(inner, "RMSNormalization")
        ones = None if norm is None else constant_floats(norm.inputs[1])
        if norm is None or not ones or any(one != 1.0 for one in ones) or not is_inner(inner):
            continue
        x, gate = _source(skip(norm.inputs[0], "Reshape"))
        dtype = product.outputs[0].dtype
        if x is None or x.dtype != dtype or (gate is not None and gate.dtype != dtype):
            continue
        attributes = {"epsilon": norm.attributes.get_float("epsilon", 1e-5), "group": len(ones)}
        fuse([product.outputs[0]], GROUPED_NORM, [x, weight, gate], attributes)
        return


def _source(value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """x and gate where ``value`` is x * silu(gate), else the value that it is cast from."""
    product = producer(value, "Mul")
    if product is not None and is_inner(value):
        for x, silu in (product.inputs, reversed(product.inputs)):
            gate = silu_argument(silu)
            if gate is not None:
                return skip(x, "Cast"), narrow(gate)
    return skip(value, "Cast"), None


def silu_argument(value: ir.Value | None) -> ir.Value | None:
    """v where ``value`` is v * sigmoid(v)."""
    product = producer(value, "Mul")
    if product is None:
        return None
    for v, factor in (product.inputs, reversed(product.inputs)):
        sigmoid = producer(factor, "Sigmoid")
        if v is not None and sigmoid is not None and sigmoid.inputs[0] is v:
            return v
    return None


def narrow(value: ir.Value) -> ir.Value | None:
    """``value`` before its cast; two nodes of its SiLU read it."""
    cast = producer(value, "Cast")
    return value if cast is None else cast.inputs[0]
