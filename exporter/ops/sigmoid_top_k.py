"""A router that chooses experts by sigmoid score plus a learned correction."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch

from hybridge.exporter.ops.onnx_nodes import FLOAT, NAMESPACE, ints, op
from hybridge.exporter.ops.routing import as_int32, choose, fake_choice, total

LEAST = float(np.finfo(np.float32).min)


@torch.library.custom_op(f"{NAMESPACE}::sigmoid_top_k", mutates_args=())
def sigmoid_top_k(
    logits: torch.Tensor,
    correction_bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    normalized: bool,
    scaling: float,
    sum_epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sigmoid scores of logits [..., experts], chosen by score + ``correction_bias`` [experts], weighted by score.

    Only experts of the ``top_groups`` of ``groups`` equal groups with the largest sum of two biased scores count.
    The weights are divided by their sum + ``sum_epsilon`` where ``normalized``, then multiplied by ``scaling``. Returns
    weights and ids as softmax_top_k does.
    """
    scores = logits.sigmoid()
    biased = scores if correction_bias is None else scores + correction_bias
    if top_groups < groups:
        grouped = biased.unflatten(-1, (groups, -1))
        best = grouped.topk(2, dim=-1)[0].sum(-1).topk(top_groups, dim=-1)[1]
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        biased = grouped.masked_fill(dropped[..., None], torch.finfo(biased.dtype).min).flatten(-2)
    ids = biased.topk(top_k, dim=-1)[1]
    weights = scores.gather(-1, ids)
    if normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + sum_epsilon)
    return weights * scaling, ids.int()


@sigmoid_top_k.register_fake
def _fake(
    logits: torch.Tensor, correction_bias: torch.Tensor | None, top_k: int, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return fake_choice(logits, top_k)


def to_onnx(
    logits: Any,
    correction_bias: Any,
    top_k: int,
    groups: int,
    top_groups: int,
    normalized: bool,
    scaling: float,
    sum_epsilon: float,
) -> tuple[Any, Any]:
    scores = op.Sigmoid(logits)
    biased = scores if correction_bias is None else op.Add(scores, correction_bias)
    if top_groups < groups:
        biased = _best_groups(biased, [0] * (len(logits.shape) - 1), int(logits.shape[-1]), groups, top_groups)
    ids = choose(biased, top_k)[1]
    weights = op.GatherElements(scores, ids, axis=-1)
    if normalized:
        weights = op.Div(weights, op.Add(total(weights), op.Constant(value_float=sum_epsilon)))
    if scaling != 1.0:
        weights = op.Mul(weights, op.Constant(value_float=scaling))
    return weights, as_int32(ids)


def _best_groups(biased: Any, tokens: list[int], experts: int, groups: int, top_groups: int) -> Any:
    """``biased`` [..., experts] with the least number outside of the best groups; ``tokens`` is a 0 an axis before."""
    grouped = op.Reshape(biased, ints(*tokens, groups, experts // groups))
    value = op.ReduceSum(choose(grouped, 2)[0], ints(-1), keepdims=0)
    best = op.Unsqueeze(choose(value, top_groups)[1], ints(-2))  # [..., 1, top_groups]
    same = op.Equal(best, op.Constant(value=_column(groups)))  # [..., groups, top_groups]
    hits = op.ReduceSum(op.Cast(same, to=FLOAT), ints(-1), keepdims=1)
    masked = op.Where(op.Greater(hits, op.Constant(value_float=0.0)), grouped, op.Constant(value_float=LEAST))
    return op.Reshape(masked, ints(*tokens, experts))


def _column(count: int) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.arange(count, dtype=np.int64)[:, None])
