"""Eager ``cached_attention``."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def cached_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    start: torch.Tensor,
    slots: torch.Tensor,
    source: torch.Tensor,
    valid: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y [b, heads, t, head_dim] and the caches [b, kv_heads, max_seq, head_dim] after the step."""
    keys, values = (
        past.scatter(2, slots, _written(past, new, slots, source, valid))
        for past, new in ((past_key, key), (past_value, value))
    )
    y = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale, enable_gqa=True)
    return y, keys, values


def _written(
    past: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, source: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """The values at ``slots`` of ``past`` [b, h, max_seq, d] after the tokens of ``new`` [b, h, t, d] are written."""
    return torch.where(valid, new.gather(2, source), past.gather(2, slots))
