"""Which tokens of a dense step are the first of their sequences."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, ints, op, positions, scalar


@torch.library.custom_op(f"{NAMESPACE}::at_start", mutates_args=())
def at_start(input_ids: torch.Tensor, past_lengths: torch.Tensor) -> torch.Tensor:
    """bool [b, t, 1]: whether a token's position is 0; input_ids [b, t], past_lengths [b] int32."""
    positions = past_lengths.long()[:, None] + torch.arange(input_ids.shape[1], device=input_ids.device)
    return (positions == 0).unsqueeze(-1)


@at_start.register_fake
def _fake(input_ids: torch.Tensor, past_lengths: torch.Tensor) -> torch.Tensor:
    return input_ids.new_empty((*input_ids.shape, 1), dtype=torch.bool)


def to_onnx(input_ids: Any, past_lengths: Any) -> Any:
    return op.Unsqueeze(op.Equal(positions(input_ids, past_lengths), scalar(0)), ints(2))
