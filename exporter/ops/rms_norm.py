"""RMSNormalization over the last axis."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNormalization over the last axis, computed in float32: x [..., d], weight [d] -> [..., d]."""
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


@rms_norm.register_fake
def _fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


def to_onnx(x: Any, weight: Any, eps: float) -> Any:
    return op.RMSNormalization(x, weight, axis=-1, epsilon=eps)
