"""cos and sin of the rotary embedding, of a dense step."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import FLOAT, NAMESPACE, ints, op, positions, rotary_cos_sin


@torch.library.custom_op(f"{NAMESPACE}::rotary_tables", mutates_args=())
def rotary_tables(
    input_ids: torch.Tensor, past_lengths: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [b, t, r/2] in ``dtype`` of the angles position * inv_freq, computed in inv_freq's type."""
    positions = past_lengths.long()[:, None] + torch.arange(input_ids.shape[1], device=input_ids.device)
    angles = positions[..., None].to(inv_freq.dtype) * inv_freq
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


@rotary_tables.register_fake
def _fake(
    input_ids: torch.Tensor, past_lengths: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    table = inv_freq.new_empty((*input_ids.shape, inv_freq.shape[0]), dtype=dtype)
    return table, torch.empty_like(table)


def to_onnx(
    input_ids: Any, past_lengths: Any, inv_freq: Any, scaling: float, dtype: torch.dtype | int
) -> tuple[Any, Any]:
    at = op.Cast(positions(input_ids, past_lengths), to=FLOAT)
    return rotary_cos_sin(op.Mul(op.Unsqueeze(at, ints(2)), inv_freq), scaling, dtype)
