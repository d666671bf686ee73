"""Eager ``cached_attention`` and ``cached_latent_attention``."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hybridge.trt_plugins.reference.precision import work_dtype

# Queries whose scores are in memory at a time.
_TOKENS = 256


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
    sinks: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y [b, heads, t, head_dim] and the caches [b, kv_heads, max_seq, head_dim] after the step.

    sinks: [heads] or None.
    """
    keys, values = (
        past.scatter(2, slots, _written(past, new, slots, source, valid))
        for past, new in ((past_key, key), (past_value, value))
    )
    if sinks is None:
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale, enable_gqa=True)
    else:
        y = attention_with_sinks(query, keys, values, visible, sinks, scale)
    return y, keys, values


def cached_latent_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    past_key: torch.Tensor,
    start: torch.Tensor,
    slots: torch.Tensor,
    source: torch.Tensor,
    valid: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with one cache, whose keys are the values too: y and the cache."""
    keys = past_key.scatter(2, slots, _written(past_key, key, slots, source, valid))
    y = F.scaled_dot_product_attention(query, keys, keys, attn_mask=visible, scale=scale, enable_gqa=True)
    return y, keys


def attention_with_sinks(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """softmax(scale * q . k | sinks) @ v in float32 at least; the weight of a head's sink is dropped.

    Args:
        query: [b, heads, t, head_dim].
        keys, values: [b, kv_heads, s, head_dim].
        visible: [b, 1, t, s] bool.
        sinks: [heads].

    Returns:
        y like query.
    """
    work, kv_heads = work_dtype(query), keys.shape[1]
    keys, values = (cache.to(work)[:, :, None] for cache in (keys, values))
    column = sinks.to(work).view(1, kv_heads, -1, 1, 1)
    results = []
    for part, seen in zip(query.split(_TOKENS, 2), visible.split(_TOKENS, 2), strict=True):
        grouped = part.unflatten(1, (kv_heads, -1)).to(work)  # [b, kv_heads, ratio, t, head_dim]
        scores = (grouped @ keys.transpose(-1, -2) * scale).masked_fill(~seen[:, :, None], -torch.inf)
        weights = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
        results.append((weights @ values).flatten(1, 2).to(query.dtype))
    return torch.cat(results, 2)


def _written(
    past: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, source: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """The values at ``slots`` of ``past`` [b, h, max_seq, d] after the tokens of ``new`` [b, h, t, d] are written."""
    return torch.where(valid, new.gather(2, source), past.gather(2, slots))
