"""Attention with an explicit mask."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention with grouped query heads: q [b, hq, t, d], k, v [b, hkv, s, d], mask [b, 1, t, s] (True: visible).

    Returns [b, hq, t, d]. hkv divides hq.
    """
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@attention.register_fake
def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(q)


def to_onnx(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    return op.Attention(q, k, v, mask, scale=scale)[0]
