"""``reshape_and_cache`` in standard operators."""

from __future__ import annotations

import onnx

from trt_plugins.functions.body import Body
from trt_plugins.functions.packed_rows import integers, placed
from trt_plugins.functions.signature import Signature

_POOL_RANK = 5


def reshape_and_cache_function(signature: Signature) -> onnx.FunctionProto:
    """One scatter of all keys, then all values."""
    body = Body(signature)
    slots, size = integers(body, "slot_mapping"), body.size("kv_pool", 2)
    negative = body.op("Less", slots, body.constant(0))
    block = body.op("Div", slots, size)
    offset = body.op("Where", negative, body.constant([-1]), body.op("Mod", slots, size))
    tokens = body.size("slot_mapping", 0)
    half = [body.op("Expand", body.constant([index]), tokens) for index in (0, 1)]
    places = [body.concat(*half), body.concat(block, block), body.concat(offset, offset)]
    entries = body.concat("key", "value")  # [2 * tokens, kv_heads, head_dim]
    body.output(placed(body, "kv_pool", places, entries, _POOL_RANK - 2), "kv_pool_out")
    return body.function()
