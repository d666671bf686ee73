"""``mamba2_conv_scan`` in standard operators: the convolution, the chunked scan of its output, the gate."""

from __future__ import annotations

import onnx

from hybridge.trt_plugins.activations import silu
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.causal_conv1d import conv_outputs
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.nodes import TO_END
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.update_ssm_state import ssm_outputs


def mamba2_conv_scan_function(signature: Signature) -> onnx.FunctionProto:
    """The bodies of the two operators that it joins, without a rounding between them."""
    body = Body(signature)
    names = ("conv_input", "gate", "dt")
    conv_input, gate, dt = (
        body.read(name) if signature.has_time else body.unsqueeze(body.read(name), 1) for name in names
    )
    mixed, conv_state, conv_after = conv_outputs(body, conv_input, body.read("conv_weight"), body.read("conv_bias"))
    x, B, C = _split(body, mixed, gate)
    y, state, after = ssm_outputs(body, x, B, C, dt)
    y = body.reshape(y, body.op("Shape", gate))
    time = body.size(gate, 1)
    gated = body.op("Mul", y, silu(body, gate))
    valid = valid_tokens(body, clamped_lengths(body, time), time, rank=3)
    y = body.op("Where", valid, gated, body.float32(0.0))
    if not signature.has_time:
        y = body.op("Squeeze", y, body.constant([1]))
    body.write(y, "y", like="gate")
    body.write_state(conv_state, conv_after, "conv_state_out", like="conv_state")
    body.write_state(state, after, "state_out", like="state")
    return body.function()


def _split(body: Body, mixed: str, gate: str) -> tuple[str, str, str]:
    """x [b, t, h, p], B and C [b, t, g, n] of the channels of ``mixed`` [b, t, conv_dim]."""
    state = body.read("state")
    inner, state_size, tokens = body.size(gate, 2), body.size(state, 3), body.size(mixed, 0, 2)
    width = body.op("Div", body.op("Sub", body.size(mixed, 2), inner), body.constant([2]))
    after_b = body.op("Add", inner, width)
    bounds = ((body.constant([0]), inner), (inner, after_b), (after_b, body.constant([TO_END])))
    x, B, C = (body.slice(mixed, 2, start, end) for start, end in bounds)
    groups = body.op("Div", width, state_size)
    x = body.reshape(x, tokens, body.size(state, 1, 3))
    return x, body.reshape(B, tokens, groups, state_size), body.reshape(C, tokens, groups, state_size)
