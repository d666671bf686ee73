"""cos and sin of the rotary embedding, of a packed step."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import FLOAT, NAMESPACE, ints, op, rotary_cos_sin


@torch.library.custom_op(f"{NAMESPACE}::packed_rotary_tables", mutates_args=())
def packed_rotary_tables(
    positions: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [tokens, r/2] in ``dtype`` of the angles positions * inv_freq, positions [tokens] int64."""
    angles = positions[:, None].to(inv_freq.dtype) * inv_freq
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


@packed_rotary_tables.register_fake
def _fake(
    positions: torch.Tensor, inv_freq: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    table = inv_freq.new_empty((positions.shape[0], inv_freq.shape[0]), dtype=dtype)
    return table, torch.empty_like(table)


def to_onnx(positions: Any, inv_freq: Any, scaling: float, dtype: torch.dtype | int) -> tuple[Any, Any]:
    positions = op.Cast(positions, to=FLOAT)
    return rotary_cos_sin(op.Mul(op.Unsqueeze(positions, ints(1)), inv_freq), scaling, dtype)
