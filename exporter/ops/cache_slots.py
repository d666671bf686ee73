"""The cache positions that a dense step writes."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import INT64, NAMESPACE, ints, length, op, scalar


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
def _fake(
    input_ids: torch.Tensor, context_lengths: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, seq = input_ids.shape
    index = input_ids.new_empty((batch, 1, seq, 1), dtype=torch.int64)
    start = past_lengths.new_empty((batch,), dtype=torch.int64)
    return start, index, torch.empty_like(index), index.new_empty(index.shape, dtype=torch.bool)


def to_onnx(input_ids: Any, context_lengths: Any, past_lengths: Any, cache: Any) -> tuple[Any, Any, Any, Any]:
    seq, past = length(input_ids, 1), op.Cast(past_lengths, to=INT64)
    start = op.Max(op.Min(past, op.Sub(length(cache, 2), seq)), scalar(0))
    tokens = op.Range(scalar(0), seq, scalar(1))
    slots = op.Add(op.Unsqueeze(start, ints(1)), tokens)
    offset = op.Sub(slots, op.Unsqueeze(past, ints(1)))
    new = op.Unsqueeze(op.Cast(context_lengths, to=INT64), ints(1))
    valid = op.And(op.GreaterOrEqual(offset, scalar(0)), op.Less(offset, new))
    source = op.Max(op.Min(offset, op.Sub(seq, scalar(1))), scalar(0))
    window = ints(1, 3)
    return start, op.Unsqueeze(slots, window), op.Unsqueeze(source, window), op.Unsqueeze(valid, window)
