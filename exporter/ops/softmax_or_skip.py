"""A router whose last class stands for no expert (ZAYA1)."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.exporter.ops.onnx_nodes import FLOAT, NAMESPACE, op
from hybridge.exporter.ops.routing import as_int32, choose, fake_choice


@torch.library.custom_op(f"{NAMESPACE}::softmax_or_skip", mutates_args=())
def softmax_or_skip(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The class of logits [..., experts + 1] with the largest softmax score + ``bias`` [experts + 1].

    Returns weights [..., 1], the score without the bias, and ids [..., 1] int32; for the last class weight 0 and
    expert 0.
    """
    scores = logits.softmax(-1)
    ids = (scores + bias).topk(1, dim=-1)[1]
    skipped = ids == logits.shape[-1] - 1
    return scores.gather(-1, ids).masked_fill(skipped, 0.0), ids.masked_fill(skipped, 0).int()


@softmax_or_skip.register_fake
def _fake(logits: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return fake_choice(logits, 1)


def to_onnx(logits: Any, bias: Any) -> tuple[Any, Any]:
    scores = op.Softmax(logits, axis=-1)
    ids = choose(op.Add(scores, bias), 1)[1]
    number, none = op.Cast(ids, to=FLOAT), op.Constant(value_float=0.0)
    skipped = op.Greater(number, op.Constant(value_float=int(logits.shape[-1]) - 1.5))
    weights = op.Where(skipped, none, op.GatherElements(scores, ids, axis=-1))
    return weights, as_int32(op.Where(skipped, none, number))
