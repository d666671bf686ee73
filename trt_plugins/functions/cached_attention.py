"""``cached_attention`` and ``cached_latent_attention`` in standard operators: the new tokens into the caches, then
Attention with a mask.

ONNX's Attention knows no sinks: with them, its products and its softmax are written out.
"""

from __future__ import annotations

import numpy as np
import onnx

from hybridge.trt_plugins.functions.nodes import FLOAT, Nodes
from hybridge.trt_plugins.functions.signature import Signature

HIDDEN_SCORE = float(np.finfo(np.float32).min)


def cached_attention_function(signature: Signature) -> onnx.FunctionProto:
    """Outputs come from their operators themselves: a copy of a cache costs as much as reading all of it."""
    body = Nodes(signature)
    for new in ("key", "value"):
        _write(body, new)
    if signature.has("sinks"):
        _with_sinks(body)
    else:
        inputs = ("query", "present_key", "present_value", "visible")
        body.result("y", "Attention", *inputs, own_attributes=("scale",))
    return body.function()


def cached_latent_attention_function(signature: Signature) -> onnx.FunctionProto:
    """The same over one cache, read as keys and as values."""
    body = Nodes(signature)
    _write(body, "key")
    body.result("y", "Attention", "query", "present_key", "present_key", "visible", own_attributes=("scale",))
    return body.function()


def _write(body: Nodes, new: str) -> None:
    """The cache of ``new``, key or value, with the new tokens."""
    past = f"past_{new}"
    old = body.op("GatherElements", past, "slots", axis=2)
    moved = body.op("GatherElements", new, "source", axis=2)
    update = body.op("Where", "valid", moved, old)
    body.result(f"present_{new}", "TensorScatter", past, update, "start", axis=2, mode="linear")


def _with_sinks(body: Nodes) -> None:
    """Shapes: b rows, g KV heads, r queries of each, t tokens, s positions, d channels. The softmax is in float32."""
    dtype, minus = body.signature.type_of("query").onnx, body.constant([-1])
    groups = body.concat(body.size("query", 0), body.size("present_key", 1), minus, body.size("query", 2, 4))
    # The scale multiplies the query, so that scores stay in the range of 16 bits.
    factor = body.op("Cast", body.attribute("scale"), to=dtype)
    queries = body.reshape(body.op("Mul", "query", factor), groups)  # [b, g, r, t, d]
    keys = body.op("Transpose", body.unsqueeze("present_key", 2), perm=[0, 1, 2, 4, 3])
    scores = body.op("Cast", body.op("MatMul", queries, keys), to=FLOAT)  # [b, g, r, t, s]
    scores = body.op("Where", body.unsqueeze("visible", 2), scores, body.float32(HIDDEN_SCORE))
    one = body.constant([1])
    column = body.reshape("sinks", body.concat(one, body.size("present_key", 1), minus, one, one))
    column = body.op("Expand", column, body.concat(body.size(scores, 0, 4), one))
    weights = body.op("Softmax", body.concat(scores, column, axis=4), axis=-1)
    weights = body.op("Cast", body.slice(weights, 4, body.constant([0]), minus), to=dtype)
    y = body.op("MatMul", weights, body.unsqueeze("present_value", 2))
    body.output(body.reshape(y, body.op("Shape", "query")), "y")
