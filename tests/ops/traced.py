"""A layer with both operators, exported to ONNX with dynamic batch and length."""

from __future__ import annotations

import math

import onnx
import torch
from torch import Tensor, nn

from hybridge.trt_plugins import torch_ops

HEADS, HEAD_DIM, GROUPS, STATE, KERNEL = 4, 2, 1, 3, 4
CHANNELS = HEADS * HEAD_DIM + 2 * GROUPS * STATE


class ConvThenSsm(nn.Module):
    def __init__(self, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, 1, KERNEL, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(CHANNELS, dtype=dtype)) if bias else None
        self.A = nn.Parameter(-torch.rand(HEADS))
        self.D = nn.Parameter(torch.randn(HEADS))
        self.dt_bias = nn.Parameter(torch.randn(HEADS))

    def forward(self, x: Tensor, dt: Tensor, conv_state: Tensor, state: Tensor, lengths: Tensor):
        ops = torch.ops.trt_edgellm
        y, conv_state = ops.causal_conv1d(x, self.weight, self.bias, conv_state, lengths, "silu")
        inner, B, C = y.split([HEADS * HEAD_DIM, GROUPS * STATE, GROUPS * STATE], -1)
        out, state = ops.update_ssm_state(
            inner.unflatten(-1, (HEADS, HEAD_DIM)),
            self.A,
            B.unflatten(-1, (GROUPS, STATE)),
            C.unflatten(-1, (GROUPS, STATE)),
            self.D,
            dt,
            self.dt_bias,
            state,
            lengths,
            1,
            0.0,
            math.inf,
            64,
        )
        return out, conv_state, state


def traced_layer(bias: bool = True, dtype: torch.dtype = torch.float32) -> onnx.ModelProto:
    """Exported through torch.export, which traces the fakes; the batch and token axes are symbolic."""
    torch_ops.register()
    layer = ConvThenSsm(bias, dtype).eval()
    inputs = (
        torch.randn(2, 6, CHANNELS, dtype=dtype),
        torch.randn(2, 6, HEADS, dtype=dtype),
        torch.randn(2, CHANNELS, KERNEL, dtype=dtype),
        torch.randn(2, HEADS, HEAD_DIM, STATE),
        torch.tensor([6, 3], dtype=torch.int32),
    )
    batch, seq = torch.export.Dim("batch", max=64), torch.export.Dim("seq", max=8192)
    tokens, rows = {0: batch, 1: seq}, {0: batch}
    program = torch.export.export(layer, inputs, dynamic_shapes=(tokens, tokens, rows, rows, rows), strict=False)
    names = {"input_names": ["x", "dt", "conv_state", "state", "lengths"]}
    translations = torch_ops.onnx_translations()
    exported = torch.onnx.export(
        program, dynamo=True, custom_translation_table=translations, opset_version=24, verbose=False, **names
    )
    return exported.model_proto
