"""A router that takes the softmax of the chosen experts' logits."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import NAMESPACE, op
from hybridge.exporter.ops.routing import as_int32, choose, fake_choice


@torch.library.custom_op(f"{NAMESPACE}::top_k_softmax", mutates_args=())
def top_k_softmax(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax of the ``top_k`` largest of logits [..., experts]; returns weights and ids as softmax_top_k does."""
    largest, ids = logits.topk(top_k, dim=-1)
    return largest.softmax(-1), ids.int()


@top_k_softmax.register_fake
def _fake(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return fake_choice(logits, top_k)


def to_onnx(logits: Any, top_k: int) -> tuple[Any, Any]:
    largest, ids = choose(logits, top_k)
    return op.Softmax(largest, axis=-1), as_int32(ids)
