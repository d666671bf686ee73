"""``reshape_and_cache`` and ``reshape_and_cache_fp8`` in standard operators."""

from __future__ import annotations

import onnx

from hybridge.trt_plugins.e4m3 import quantized
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.packed_rows import integers, placed
from hybridge.trt_plugins.functions.signature import Signature

_POOL_RANK = 5


def reshape_and_cache_function(signature: Signature) -> onnx.FunctionProto:
    """One scatter of all keys, then all values."""
    body = Body(signature)
    entries = body.concat("key", "value")  # [2 * tokens, kv_heads, head_dim]
    body.output(placed(body, "kv_pool", [*_targets(body)], entries, _POOL_RANK - 2), "kv_pool_out")
    return body.function()


def reshape_and_cache_fp8_function(signature: Signature) -> onnx.FunctionProto:
    """One scatter of the bytes, and one of the scales, which are by head."""
    body = Body(signature)
    numbers, scales = quantized(body, body.concat(body.read("key"), body.read("value")))
    part, block, offset = _targets(body)
    body.output(placed(body, "kv_pool", [part, block, offset], numbers, _POOL_RANK - 2), "kv_pool_out")
    heads, minus = body.size("kv_pool", 3), body.constant([-1])
    shape = body.op("Shape", scales)  # [2 * tokens, kv_heads]
    part, block, offset = (
        body.reshape(body.op("Expand", body.unsqueeze(place, 1), shape), minus) for place in (part, block, offset)
    )
    head = body.reshape(body.op("Expand", body.range(heads), shape), minus)
    entries = body.reshape(scales, minus)
    body.output(placed(body, "kv_scales", [part, block, head, offset], entries, 1), "kv_scales_out")
    return body.function()


def _targets(body: Body) -> tuple[str, str, str]:
    """Part of the pool, block and offset of every new key, then of every new value; a negative offset is no place.

    In a pool of one part both have the same places, and are the same numbers.
    """
    slots, size = integers(body, "slot_mapping"), body.size("kv_pool", 2)
    negative = body.op("Less", slots, body.constant(0))
    block = body.op("Div", slots, size)
    offset = body.op("Where", negative, body.constant([-1]), body.op("Mod", slots, size))
    tokens = body.size("slot_mapping", 0)
    last = body.op("Sub", body.size("kv_pool", 0), body.constant([1]))
    parts = [body.op("Expand", index, tokens) for index in (body.constant([0]), last)]
    return body.concat(*parts), body.concat(block, block), body.concat(offset, offset)
