"""``paged_attention`` and ``paged_attention_fp8`` in standard operators: the blocks of each row gathered, up to those
of the longest row.

Letters of shapes: b rows, t tokens of the longest row, s positions of the longest row's blocks, g KV heads, r query
heads of a KV head, d head_dim.
"""

from __future__ import annotations

import numpy as np
import onnx

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.trt_plugins.e4m3 import floats
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.packed_rows import integers, row_lengths
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.specs.fp8_kv import has_kv_scales

_HIDDEN = float(np.finfo(np.float32).min)


def paged_attention_function(signature: Signature) -> onnx.FunctionProto:
    """Scores of every row against its gathered keys; what no token may see is masked, and read as zero."""
    body = Body(signature)
    query = body.read("query")  # [b, t, heads, d]
    keys, values = _gathered(body)
    first, position = _first_positions(body), body.range(body.size(keys, 1))
    keys, values = (_clean(body, tensor, first, position) for tensor in (keys, values))
    rows, time, head_dim = body.size(query, 0), body.size(query, 1), body.size(query, 3)
    groups = body.size("kv_pool", 3)
    ratio = body.op("Div", body.size(query, 2), groups)
    grouped = body.reshape(query, rows, time, groups, ratio, head_dim)
    grouped = body.op("Transpose", grouped, perm=[0, 2, 3, 1, 4])
    flat = body.reshape(grouped, rows, groups, body.op("Mul", ratio, time), head_dim)
    scores = body.op("MatMul", flat, body.op("Transpose", keys, perm=[0, 2, 3, 1]))
    scores = body.reshape(scores, rows, groups, ratio, time, body.size(keys, 1))
    weights = _weights(body, _capped(body, body.op("Mul", scores, _scale(body, head_dim))), first, position)
    weights = body.reshape(weights, rows, groups, body.op("Mul", ratio, time), body.size(keys, 1))
    y = body.op("MatMul", weights, body.op("Transpose", values, perm=[0, 2, 1, 3]))
    y = body.reshape(y, rows, groups, ratio, time, head_dim)
    y = body.op("Transpose", y, perm=[0, 3, 1, 2, 4])
    body.write(body.reshape(y, body.op("Shape", query)), "y", like="query")
    return body.function()


def _gathered(body: Body) -> tuple[str, str]:
    """Keys and values of all positions of the first blocks of each row, float32 [b, s, g, d] each."""
    size, minus = body.size("kv_pool", 2), body.constant([-1])
    longest = body.op("ReduceMax", integers(body, "seq_lens"), keepdims=1)
    used = body.op("Div", body.op("Add", longest, body.op("Sub", size, body.constant([1]))), size)
    used = body.op("Min", body.op("Max", used, body.constant([1])), body.size("block_table", 1))
    table = body.slice(integers(body, "block_table"), 1, body.constant([0]), used)
    table = body.op("Max", table, body.constant(0))
    blocks = body.reshape("kv_pool", minus, body.size("kv_pool", 2, 5))  # [parts * num_blocks, block_size, g, d]
    # The values are in the last part.
    part = body.op("Sub", body.size("kv_pool", 0), body.constant([1]))
    count = body.op("Mul", part, body.size("kv_pool", 1))
    shape = body.concat(body.size("block_table", 0), minus, body.size("kv_pool", 3, 5))
    found = []
    for index in (table, body.op("Add", table, count)):
        rows = body.reshape(body.op("Gather", blocks, index, axis=0), shape)
        if has_kv_scales(body.signature.spec):
            rows = body.op("Mul", floats(body, rows), _gathered_scales(body, index))
        is_float32 = body.signature.type_of("kv_pool") in (DType.FLOAT32, E4M3_BYTES)
        found.append(rows if is_float32 else body.op("Cast", rows, to=DType.FLOAT32.onnx))
    return found[0], found[1]


def _gathered_scales(body: Body, index: str) -> str:
    """The scales of blocks ``index`` [b, m] of keys and values, float32 [b, s, g, 1]."""
    minus, one = body.constant([-1]), body.constant([1])
    blocks = body.reshape("kv_scales", minus, body.size("kv_scales", 2, 4))  # [parts * num_blocks, g, block_size]
    by_token = body.op("Transpose", body.op("Gather", blocks, index, axis=0), perm=[0, 1, 3, 2])
    return body.reshape(by_token, body.size("block_table", 0), minus, body.size("kv_pool", 3), one)


def _first_positions(body: Body) -> str:
    """Position of the first new token of each row, int64 [b]."""
    return body.op("Sub", integers(body, "seq_lens"), row_lengths(body))


def _clean(body: Body, tensor: str, first: str, position: str) -> str:
    """``tensor`` [b, s, g, d], zero where no token of the row sees it: the values may be NaN."""
    before_end = body.op("Less", position, body.unsqueeze(integers(body, "seq_lens"), 1))
    seen = body.op("And", before_end, _in_window(body, position, body.unsqueeze(first, 1)))
    return body.op("Where", body.unsqueeze(seen, 2, 3), tensor, body.float32(0.0))


def _in_window(body: Body, position: str, token: str) -> str:
    """Whether ``position`` is among the last sliding_window positions up to ``token``."""
    window = body.attribute("sliding_window")
    inside = body.op("Greater", position, body.op("Sub", token, window))
    return body.op("Or", inside, body.op("Equal", window, body.constant(0)))


def _scale(body: Body, head_dim: str) -> str:
    scale = body.attribute("scale")
    size = body.op("Cast", head_dim, to=DType.FLOAT32.onnx)
    default = body.op("Reciprocal", body.op("Sqrt", size))
    return body.op("Where", body.op("Greater", scale, body.float32(0.0)), scale, default)


def _capped(body: Body, scores: str) -> str:
    cap, zero = body.attribute("softcap"), body.float32(0.0)
    is_capped = body.op("Greater", cap, zero)
    bound = body.op("Where", is_capped, cap, body.float32(1.0))
    capped = body.op("Mul", body.op("Tanh", body.op("Div", scores, bound)), bound)
    return body.op("Where", is_capped, capped, scores)


def _weights(body: Body, scores: str, first: str, position: str) -> str:
    """Softmax of ``scores`` [b, g, r, t, s] over the visible positions and the sink of each head."""
    time, groups, ratio = body.size(scores, 3), body.size(scores, 1), body.size(scores, 2)
    token = body.op("Add", body.unsqueeze(first, 1), body.range(time))  # [b, t]
    token = body.unsqueeze(token, 2)
    visible = body.op("And", body.op("LessOrEqual", position, token), _in_window(body, position, token))
    scores = body.op("Where", body.unsqueeze(visible, 1, 2), scores, body.float32(_HIDDEN))
    sink = body.reshape(body.read("sinks"), groups, ratio, body.constant([1, 1]))
    sink = body.op("Expand", sink, body.concat(body.size(scores, 0, 4), body.constant([1])))
    weights = body.op("Softmax", body.concat(scores, sink, axis=4), axis=-1)
    return body.slice(weights, 4, body.constant([0]), body.constant([-1]))
