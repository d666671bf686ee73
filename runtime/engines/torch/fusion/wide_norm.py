"""Norms that compute in float32 around values of 16 bits, as one node.

    x [Cast to float32] -> RMSNormalization -> [Cast back]                        WideNorm (x, weight float32)
    RMSNormalization -> [Cast to float32] * silu(gate [Cast]) -> [Cast back]      GatedNorm (x, weight, gate)

Both have the attribute epsilon.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.fusion.grouped_norm import narrow, silu_argument
from hybridge.runtime.engines.torch.graph import fuse, is_constant, is_inner, only_use, producer

WIDE_NORM, GATED_NORM = "WideNorm", "GatedNorm"
_EPSILON = 1e-5


def fuse_wide_norms(graph: ir.Graph) -> None:
    """Make one node of every such norm."""
    for node in list(graph):
        is_norm = (node.domain, node.op_type) == ("", "RMSNormalization") and node.attributes.get_int("axis", -1) == -1
        if is_norm and node.graph is not None:
            _fuse_casts(node)
            _fuse_gate(node)


def _fuse_casts(norm: ir.Node) -> None:
    wide, back = producer(norm.inputs[0], "Cast"), only_use(norm.outputs[0], "Cast")
    if wide is None or back is None or not is_inner(norm.inputs[0]) or not is_constant(norm.inputs[1]):
        return
    x = wide.inputs[0]
    if x is not None and x.dtype == back.outputs[0].dtype and norm.outputs[0].dtype == ir.DataType.FLOAT:
        fuse([back.outputs[0]], WIDE_NORM, [x, norm.inputs[1]], _attributes(norm))


def _fuse_gate(norm: ir.Node) -> None:
    x, normed = norm.inputs[0], norm.outputs[0]
    cast = only_use(normed, "Cast")
    wide = normed if cast is None else cast.outputs[0]
    product = only_use(wide, "Mul")
    if x is None or product is None:
        return
    silu = product.inputs[1] if product.inputs[0] is wide else product.inputs[0]
    gate = silu_argument(silu)
    back = product if cast is None else only_use(product.outputs[0], "Cast")
    if gate is None or back is None or not is_inner(silu):
        return
    gate = gate if cast is None else narrow(gate)
    result = back.outputs[0]
    if gate is not None and x.dtype == gate.dtype == result.dtype:
        fuse([result], GATED_NORM, [x, norm.inputs[1], gate], _attributes(norm))


def _attributes(norm: ir.Node) -> dict[str, float]:
    return {"epsilon": norm.attributes.get_float("epsilon", _EPSILON)}
