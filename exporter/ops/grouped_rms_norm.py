"""RMSNormalization of equal parts of the last axis."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::grouped_rms_norm", mutates_args=())
def grouped_rms_norm(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """RMSNormalization of each of ``groups`` equal parts of the last axis, no scale: x [b, t, d] -> [b, t, d]."""
    grouped = x.unflatten(-1, (groups, x.shape[-1] // groups))
    return (grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)


@grouped_rms_norm.register_fake
def _fake(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


def to_onnx(x: Any, groups: int, eps: float) -> Any:
    size = int(x.shape[-1]) // groups
    # The statistics are float32, and so is x.
    ones = op.Constant(value_floats=[1.0] * size)
    if groups == 1:
        return op.RMSNormalization(x, ones, axis=-1, epsilon=eps)
    leading = [0] * (len(x.shape) - 1)
    grouped = op.Reshape(x, op.Constant(value_ints=[*leading, groups, size]))
    normed = op.RMSNormalization(grouped, ones, axis=-1, epsilon=eps)
    return op.Reshape(normed, op.Constant(value_ints=[*leading, groups * size]))
