"""Body of ``routed_experts``: ONNX Runtime's MoE, which reads only the chosen experts, where they are.

MoE chooses by itself, from scores whose softmax over the chosen experts is their weight. Given the logarithm of each
chosen expert's weight, and the least number for all others, it chooses the same and weighs them by their share; the
sum of the weights makes up for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.joined_weights import interleaved_weight
from hybridge.runtime.engines.onnxruntime.kernels import Kernels

# (activation, gated) to MoE's name of the form.
_FORMS: Mapping[tuple[str, int], str] = MappingProxyType(
    {("silu", 1): "swiglu", ("silu", 0): "silu", ("relu", 0): "relu"}
)
# Rows of gate and up take turns; SwiGLU without the constants that some models have in it.
_SWIGLU = {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
_LEAST = np.finfo(np.float32).min


def routed_experts_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y like x, for tokens with any axes before the last."""
    x, ids, weights, up, down = node.inputs
    attributes = op_attributes(node)
    form = _FORMS.get((str(attributes["activation"]), int(attributes["gated"])))
    route, up_shape = fixed_shape(ids), fixed_shape(up)
    if not kernels.experts or form is None or route is None or up_shape is None or x is None or up is None:
        return None
    top_k, experts = route[-1], up_shape[0]
    if top_k is None or experts is None or not up.is_initializer():
        return None
    if attributes["gated"]:
        up = interleaved_weight(insert.graph, up)
        if up is None:
            return None
    scores = _scores(insert, ids, weights, top_k, experts)
    options: dict[str, Any] = {"k": top_k, "activation_type": form, "normalize_routing_weights": 1}
    if form == "swiglu":
        options |= _SWIGLU
    mixed = insert.microsoft("MoE", x, scores, up, None, down, **options)
    total = insert.op("ReduceSum", weights, insert.ints(-1), keepdims=1)
    return [insert.op("Mul", mixed, total)]


def _scores(insert: Inserter, ids: ir.Value | None, weights: ir.Value | None, top_k: int, experts: int) -> ir.Value:
    """[tokens, experts]: the logarithm of the weight at chosen experts."""
    chosen = insert.op("Cast", insert.op("Reshape", ids, insert.ints(-1, top_k)), to=int(ir.DataType.INT64))
    values = insert.op("Log", insert.op("Reshape", weights, insert.ints(-1, top_k)))
    shape = insert.shape(insert.size(chosen, 0), experts)
    least = insert.op("Expand", insert.constant(np.array(_LEAST, np.float32)), shape)
    return insert.op("ScatterElements", least, chosen, values, axis=1)
