"""TensorScatter."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op


@torch.library.custom_op(f"{NAMESPACE}::tensor_scatter", mutates_args=())
def tensor_scatter(past: torch.Tensor, update: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """TensorScatter, linear mode: ``update`` [b, h, t, d] replaces positions start.. of ``past`` [b, h, max_seq, d].

    ``start`` [b] int64 with start + t <= max_seq in every row.
    """
    positions = start[:, None] + torch.arange(update.shape[2], device=past.device)
    index = positions[:, None, :, None].expand_as(update)
    return past.scatter(2, index, update)


@tensor_scatter.register_fake
def _fake(past: torch.Tensor, update: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(past)


def to_onnx(past: Any, update: Any, start: Any) -> Any:
    return op.TensorScatter(past, update, start, axis=2, mode="linear")
