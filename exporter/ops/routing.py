"""Shared by the routers: the fake of a choice of experts, and its ONNX nodes."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import INT32, ints, op


def fake_choice(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [..., top_k] in the type of ``logits`` [..., experts] and ids [..., top_k] int32."""
    weights = logits.new_empty((*logits.shape[:-1], top_k))
    return weights, torch.empty_like(weights, dtype=torch.int32)


def choose(x: Any, count: int) -> tuple[Any, Any]:
    """The ``count`` largest of the last axis and their indices, int64."""
    values, ids = op.TopK(x, ints(count), axis=-1)
    return values, ids


def total(weights: Any) -> Any:
    """The sum over the last axis, which stays."""
    return op.ReduceSum(weights, ints(-1), keepdims=1)


def as_int32(ids: Any) -> Any:
    return op.Cast(ids, to=INT32)
