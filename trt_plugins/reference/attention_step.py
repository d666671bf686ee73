"""Eager ``attention_step``."""

from __future__ import annotations

import torch


def attention_step(
    input_ids: torch.Tensor,
    context_lengths: torch.Tensor,
    past_lengths: torch.Tensor,
    cache: torch.Tensor,
    sliding_window: int,
) -> tuple[torch.Tensor, ...]:
    """start [b], slots and source [b, kv_heads, t, head_dim] int64; valid [b, 1, t, 1] bool, visible likewise
    [b, 1, t, max_seq]."""
    seq, max_seq, past = input_ids.shape[1], cache.shape[2], past_lengths.long()
    token = torch.arange(seq, device=past.device)
    start = past.clamp(max=max_seq - seq).clamp(min=0)
    slots = start[:, None] + token
    offset = slots - past[:, None]
    valid = (offset >= 0) & (offset < context_lengths.long()[:, None])
    source = offset.clamp(min=0, max=seq - 1)
    query = (past[:, None] + token)[:, None, :, None]
    key = torch.arange(max_seq, device=past.device)
    visible = key <= query
    if sliding_window:
        visible = visible & (key > query - sliding_window)
    slots, source, valid = (value[:, None, :, None] for value in (slots, source, valid))
    return start, *(value.expand(-1, cache.shape[1], -1, cache.shape[3]) for value in (slots, source)), valid, visible
