"""A layer with both operators, exported to ONNX with dynamic batch and length."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from hybridge.exporter.ops.aten import aten_translations
from hybridge.exporter.ops.plugin_nodes import plugin_translations
from hybridge.exporter.trace.tracer import LEAST_EXTENT, Tracer, model_of
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
    """Recorded from the fakes; the batch and token axes are symbolic."""
    torch_ops.register()
    batch, seq = LEAST_EXTENT + 1, LEAST_EXTENT + 2
    shapes = {
        "x": ((batch, seq, CHANNELS), dtype),
        "dt": ((batch, seq, HEADS), dtype),
        "conv_state": ((batch, CHANNELS, KERNEL), dtype),
        "state": ((batch, HEADS, HEAD_DIM, STATE), torch.float32),
        "lengths": ((batch,), torch.int32),
    }
    with torch.inference_mode(), torch.device("meta"):
        layer = ConvThenSsm(bias, dtype).eval()
        tracer = Tracer({**aten_translations(), **plugin_translations()}, {batch: "batch", seq: "seq"})
        weights = [tracer.bind(parameter, name) for name, parameter in layer.named_parameters()]
        tensors = [torch.empty(shape, dtype=own) for shape, own in shapes.values()]
        inputs = [tracer.bind(tensor, name) for name, tensor in zip(shapes, tensors, strict=True)]
        with tracer:
            results = layer(*tensors)
    outputs = [tracer.value(result) for result in results]
    return ir.to_proto(model_of([*inputs, *weights], outputs, tracer.nodes))
