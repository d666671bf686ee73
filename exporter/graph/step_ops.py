"""Torch operators for what all layers of a step share: cache slots, masks, rotary tables, the last token.

Each becomes a handful of ONNX nodes (step_translations); the eager form is their meaning.
"""

from __future__ import annotations

import torch

from hybridge.exporter.graph.standard_ops import NAMESPACE


@torch.library.custom_op(f"{NAMESPACE}::cache_slots", mutates_args=())
def cache_slots(
    input_ids: torch.Tensor, context_lengths: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The window of t cache positions that a step writes in each row.

    It begins at past_lengths, or earlier where a row's padding would run over the end of the cache; positions
    that receive no valid new token keep their old content, so that padding never changes a cache.

    input_ids [b, t]; lengths [b] int32; cache [b, heads, max_seq, head_dim]. Returns start [b] int64 and, as
    [b, 1, t, 1]: slots (cache positions, int64), source (the new token for each, int64), valid (bool).
    """
    seq, max_seq, past = input_ids.shape[1], cache.shape[2], past_lengths.long()
    start = past.clamp(max=max_seq - seq).clamp(min=0)
    slots = start[:, None] + torch.arange(seq, device=past.device)
    offset = slots - past[:, None]
    valid = (offset >= 0) & (offset < context_lengths.long()[:, None])
    source = offset.clamp(min=0, max=seq - 1)
    return start, slots[:, None, :, None], source[:, None, :, None], valid[:, None, :, None]


@cache_slots.register_fake
def _(
    input_ids: torch.Tensor, context_lengths: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, seq = input_ids.shape
    index = input_ids.new_empty((batch, 1, seq, 1), dtype=torch.int64)
    start = past_lengths.new_empty((batch,), dtype=torch.int64)
    return start, index, torch.empty_like(index), index.new_empty(index.shape, dtype=torch.bool)


@torch.library.custom_op(f"{NAMESPACE}::attention_mask", mutates_args=())
def attention_mask(
    input_ids: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor, window: int
) -> torch.Tensor:
    """Visible keys [b, 1, t, max_seq] bool: causal, and with ``window`` > 0 only the last ``window`` positions."""
    query = (past_lengths.long()[:, None] + torch.arange(input_ids.shape[1], device=input_ids.device))[:, None, :, None]
    key = torch.arange(cache.shape[2], device=input_ids.device)
    visible = key <= query
    return visible & (key > query - window) if window > 0 else visible


@attention_mask.register_fake
def _(input_ids: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor, window: int) -> torch.Tensor:
    return input_ids.new_empty((input_ids.shape[0], 1, input_ids.shape[1], cache.shape[2]), dtype=torch.bool)


@torch.library.custom_op(f"{NAMESPACE}::rotary_tables", mutates_args=())
def rotary_tables(
    input_ids: torch.Tensor, past_lengths: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [b, t, r/2] in ``dtype`` of the angles position * inv_freq, computed in inv_freq's type."""
    positions = past_lengths.long()[:, None] + torch.arange(input_ids.shape[1], device=input_ids.device)
    angles = positions[..., None].to(inv_freq.dtype) * inv_freq
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


@rotary_tables.register_fake
def _(
    input_ids: torch.Tensor, past_lengths: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    table = inv_freq.new_empty((*input_ids.shape, inv_freq.shape[0]), dtype=dtype)
    return table, torch.empty_like(table)


@torch.library.custom_op(f"{NAMESPACE}::packed_rotary_tables", mutates_args=())
def packed_rotary_tables(
    positions: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [tokens, r/2] in ``dtype`` of the angles positions * inv_freq, positions [tokens] int64."""
    angles = positions[:, None].to(inv_freq.dtype) * inv_freq
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


@packed_rotary_tables.register_fake
def _(
    positions: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    table = inv_freq.new_empty((positions.shape[0], inv_freq.shape[0]), dtype=dtype)
    return table, torch.empty_like(table)


@torch.library.custom_op(f"{NAMESPACE}::selected_tokens", mutates_args=())
def selected_tokens(x: torch.Tensor, logits_indices: torch.Tensor) -> torch.Tensor:
    """The tokens ``logits_indices`` [m] int32 of ``x`` [tokens, d]: [m, d]."""
    return x[logits_indices.long()]


@selected_tokens.register_fake
def _(x: torch.Tensor, logits_indices: torch.Tensor) -> torch.Tensor:
    return x.new_empty((logits_indices.shape[0], x.shape[1]))


@torch.library.custom_op(f"{NAMESPACE}::last_token", mutates_args=())
def last_token(x: torch.Tensor, context_lengths: torch.Tensor) -> torch.Tensor:
    """The last valid token of each row: x [b, t, d] -> [b, d]; the first token where a row's length is 0."""
    last = (context_lengths.long() - 1).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device), last]


@last_token.register_fake
def _(x: torch.Tensor, context_lengths: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], x.shape[2]))
