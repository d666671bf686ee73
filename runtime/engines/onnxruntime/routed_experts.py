"""Body of ``routed_experts``: ONNX Runtime's MoE, which reads only the chosen experts.

MoE selects the experts with the largest scores itself and weights them by the softmax of those scores. Given the
logarithm of each chosen expert's weight as its score, and the lowest float32 for all others, it selects the same
experts with normalised weights; multiplying by the sum of the weights restores their scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.joined_weights import interleaved_weight
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

# (activation, gated) to MoE's name of the form.
_FORMS: Mapping[tuple[str, int], str] = MappingProxyType(
    {("silu", 1): "swiglu", ("silu", 0): "silu", ("relu", 0): "relu"}
)
_LEAST = np.finfo(np.float32).min


def routed_experts_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y in the shape of x, which may have any number of axes before the last."""
    up, down = node.inputs[3:5]
    if not kernels.experts or not has_kernel_form(node) or up is None or not up.is_initializer():
        return None
    if op_attributes(node)["gated"]:
        up = interleaved_weight(insert.graph, up)
        if up is None:
            return None
    up_bias, down_bias = biases_of(insert, node)
    return [weighted_experts(insert, node, "MoE", (up, up_bias, down, down_bias), {})]


def has_kernel_form(node: ir.Node) -> bool:
    """Whether MoE and QMoE support the node's activation, and the graph has fixed numbers of experts."""
    route, up = fixed_shape(node.inputs[1]), fixed_shape(node.inputs[3])
    return _form(node) is not None and bool(route and route[-1] and up and up[0])


def biases_of(insert: Inserter, node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """The biases as MoE and QMoE read them: those of gate and up alternate, as the rows of their matrix do."""
    own = node.inputs[spec_of(node.op_type).input_index("up_bias") :]
    if not own:
        return None, None
    up, down = own
    assert up is not None
    if op_attributes(node)["gated"]:
        halves = insert.reshape(up, 0, 2, -1)
        up = insert.reshape(insert.op("Transpose", halves, perm=[0, 2, 1]), 0, -1)
    return up, down


def weighted_experts(
    insert: Inserter, node: ir.Node, op_type: str, matrices: Sequence[ir.Value | None], options: Mapping[str, Any]
) -> ir.Value:
    """The output of routed_experts ``node`` computed by MoE or QMoE; ``matrices`` are its inputs after the scores.

    Rows of gate and up alternate in the first matrix.
    """
    x, ids, weights, up = node.inputs[:4]
    route, up_shape, form = fixed_shape(ids), fixed_shape(up), _form(node)
    assert route is not None and route[-1] and up_shape is not None and up_shape[0] and form is not None
    scores = _scores(insert, ids, weights, route[-1], up_shape[0])
    chosen = {"k": route[-1], "activation_type": form, "normalize_routing_weights": 1, **options}
    if form == "swiglu":
        chosen |= _swiglu(node)
    mixed = insert.microsoft(op_type, x, scores, *matrices, **chosen)
    total = insert.op("ReduceSum", weights, insert.ints(-1), keepdims=1)
    result: ir.Value = insert.op("Mul", mixed, total)
    return result


def _swiglu(node: ir.Node) -> dict[str, Any]:
    """Attributes of the kernels' SwiGLU, in which gate and up rows alternate."""
    form = ExpertActivation.of(op_attributes(node))
    limits = {"swiglu_limit": form.limit} if form.limit < math.inf else {}
    return {"swiglu_fusion": 1, "activation_alpha": form.alpha, "activation_beta": form.offset, **limits}


def _form(node: ir.Node) -> str | None:
    attributes = op_attributes(node)
    return _FORMS.get((str(attributes["activation"]), int(attributes["gated"])))


def _scores(insert: Inserter, ids: ir.Value | None, weights: ir.Value | None, top_k: int, experts: int) -> ir.Value:
    """[tokens, experts]: the logarithm of the weight at chosen experts."""
    chosen = insert.op("Cast", insert.op("Reshape", ids, insert.ints(-1, top_k)), to=int(ir.DataType.INT64))
    values = insert.op("Log", insert.op("Reshape", weights, insert.ints(-1, top_k)))
    shape = insert.shape(insert.size(chosen, 0), experts)
    least = insert.op("Expand", insert.constant(np.array(_LEAST, np.float32)), shape)
    return insert.op("ScatterElements", least, chosen, values, axis=1)
