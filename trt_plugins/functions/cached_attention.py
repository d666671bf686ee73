"""``cached_attention`` in standard operators: the new tokens into the caches, then Attention with a mask."""

from __future__ import annotations

import onnx

from hybridge.trt_plugins.functions.nodes import Nodes
from hybridge.trt_plugins.functions.signature import Signature


def cached_attention_function(signature: Signature) -> onnx.FunctionProto:
    """Outputs come from their operators themselves: a copy of a cache costs as much as reading all of it."""
    body = Nodes(signature)
    for new, past, present in (("key", "past_key", "present_key"), ("value", "past_value", "present_value")):
        old = body.op("GatherElements", past, "slots", axis=2)
        moved = body.op("GatherElements", new, "source", axis=2)
        update = body.op("Where", "valid", moved, old)
        body.result(present, "TensorScatter", past, update, "start", axis=2, mode="linear")
    inputs = ("query", "present_key", "present_value", "visible")
    body.result("y", "Attention", *inputs, own_attributes=("scale",))
    return body.function()
