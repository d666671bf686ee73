"""The keys that each query of a dense step sees."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, ints, length, op, positions, scalar


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
def _fake(input_ids: torch.Tensor, past_lengths: torch.Tensor, cache: torch.Tensor, window: int) -> torch.Tensor:
    return input_ids.new_empty((input_ids.shape[0], 1, input_ids.shape[1], cache.shape[2]), dtype=torch.bool)


def to_onnx(input_ids: Any, past_lengths: Any, cache: Any, window: int) -> Any:
    query = op.Unsqueeze(positions(input_ids, past_lengths), ints(1, 3))
    key = op.Range(scalar(0), length(cache, 2), scalar(1))
    visible = op.LessOrEqual(key, query)
    if window > 0:
        visible = op.And(visible, op.Greater(key, op.Sub(query, scalar(window))))
    return visible
