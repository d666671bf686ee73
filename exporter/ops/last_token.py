"""The last valid token of each row."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import INT64, NAMESPACE, ints, op, scalar


@torch.library.custom_op(f"{NAMESPACE}::last_token", mutates_args=())
def last_token(x: torch.Tensor, context_lengths: torch.Tensor) -> torch.Tensor:
    """The last valid token of each row: x [b, t, d] -> [b, d]; the first token where a row's length is 0."""
    last = (context_lengths.long() - 1).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device), last]


@last_token.register_fake
def _fake(x: torch.Tensor, context_lengths: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], x.shape[2]))


def to_onnx(x: Any, context_lengths: Any) -> Any:
    last = op.Max(op.Sub(op.Cast(context_lengths, to=INT64), scalar(1)), scalar(0))
    return op.GatherND(x, op.Unsqueeze(last, ints(1)), batch_dims=1)
