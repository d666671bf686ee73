"""``causal_conv1d`` in standard operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from hybridge.trt_plugins.activations import silu
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.nodes import TO_END
from hybridge.trt_plugins.functions.signature import Signature


def causal_conv1d_function(signature: Signature) -> onnx.FunctionProto:
    """One shifted multiply-add a tap over concat(conv_state, x), laid out [batch, kernel + time, conv_dim]."""
    body = Body(signature)
    x = body.read("x") if signature.has_time else body.unsqueeze(body.read("x"), 1)
    y, state, after = conv_outputs(body, x, body.read("weight"), body.read("bias"))
    if not signature.has_time:
        y = body.op("Squeeze", y, body.constant([1]))
    body.write(y, "y", like="x")
    body.write_state(state, after, "conv_state_out", like="conv_state")
    return body.function()


def conv_outputs(body: Body, x: str, weight: str, bias: str) -> tuple[str, str, Callable[[str], str]]:
    """y like ``x`` [batch, time, conv_dim], zero at padding, the new state, and the states after each of the first
    tokens, for any function with conv_state, context_lengths and the attribute activation."""
    time = body.size(x, 1)
    lengths = clamped_lengths(body, time)
    state = body.op("Transpose", body.read("conv_state"), perm=[0, 2, 1])
    columns = body.concat(state, x, axis=1)
    y = _taps_sum(body, columns, weight, bias)
    if body.signature.attribute("activation") == "silu":
        y = silu(body, y)
    y = body.op("Where", valid_tokens(body, lengths, time, rank=3), y, body.float32(0.0))
    return y, _last_columns(body, columns, lengths), lambda count: _columns_after(body, columns, count)


def _taps_sum(body: Body, columns: str, weight: str, bias: str) -> str:
    """bias + sum_j weight[j] * columns[1 + j : 1 + j + time], [batch, time, conv_dim]."""
    kernel = body.signature.kernel
    taps = body.split(body.op("Transpose", weight, perm=[2, 1, 0]), kernel, axis=0)  # [1, 1, conv_dim] each
    y = bias
    for j, tap in enumerate(taps):
        shifted = body.slice(columns, 1, body.constant([1 + j]), body.constant([1 + j - kernel or TO_END]))
        y = body.op("Add", body.op("Mul", shifted, tap), y)
    return y


def _last_columns(body: Body, columns: str, lengths: str) -> str:
    """columns[b, lengths[b] : lengths[b] + kernel] of each row b, as [batch, conv_dim, kernel]."""
    offsets = body.constant([list(range(body.signature.kernel))])
    index = body.op("Add", body.unsqueeze(lengths, 1), offsets)
    last = body.op("GatherND", columns, body.unsqueeze(index, 2), batch_dims=1)
    return body.op("Transpose", last, perm=[0, 2, 1])


def _columns_after(body: Body, columns: str, count: str) -> str:
    """columns[b, j + 1 : j + 1 + kernel] for j in 0..count-1, as [batch, count, conv_dim, kernel]."""
    offsets = body.constant([list(range(1, body.signature.kernel + 1))])
    index = body.op("Add", body.unsqueeze(body.range(count), 1), offsets)
    return body.op("Transpose", body.op("Gather", columns, index, axis=1), perm=[0, 1, 3, 2])
