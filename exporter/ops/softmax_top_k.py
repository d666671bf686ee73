"""A router that chooses experts by softmax score."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op
from hybridge.exporter.ops.routing import as_int32, choose, fake_choice, total


@torch.library.custom_op(f"{NAMESPACE}::softmax_top_k", mutates_args=())
def softmax_top_k(logits: torch.Tensor, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``top_k`` largest softmax scores of logits [..., experts], divided by their sum where ``normalized``.

    Returns weights [..., top_k] in the type of the logits and ids [..., top_k] int32.
    """
    weights, ids = logits.softmax(-1).topk(top_k, dim=-1)
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.int()


@softmax_top_k.register_fake
def _fake(logits: torch.Tensor, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return fake_choice(logits, top_k)


def to_onnx(logits: Any, top_k: int, normalized: bool) -> tuple[Any, Any]:
    weights, ids = choose(op.Softmax(logits, axis=-1), top_k)
    return op.Div(weights, total(weights)) if normalized else weights, as_int32(ids)
