"""Torch operators for what a router makes of its logits: which experts a token takes, and with what weight.

Each becomes a few ONNX nodes (router_translations); the eager form is their meaning. All of it is float32.
"""

from __future__ import annotations

import torch

from hybridge.exporter.graph.standard_ops import NAMESPACE

# Added to the sum that sigmoid scores are divided by, as their families do.
SUM_EPSILON = 1e-20


@torch.library.custom_op(f"{NAMESPACE}::softmax_top_k", mutates_args=())
def softmax_top_k(logits: torch.Tensor, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``top_k`` largest softmax scores of logits [..., experts], divided by their sum where ``normalized``.

    Returns weights [..., top_k] in the type of the logits and ids [..., top_k] int32.
    """
    weights, ids = logits.softmax(-1).topk(top_k, dim=-1)
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.int()


@torch.library.custom_op(f"{NAMESPACE}::top_k_softmax", mutates_args=())
def top_k_softmax(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax of the ``top_k`` largest of logits [..., experts]; returns weights and ids as softmax_top_k does."""
    largest, ids = logits.topk(top_k, dim=-1)
    return largest.softmax(-1), ids.int()


@torch.library.custom_op(f"{NAMESPACE}::sigmoid_top_k", mutates_args=())
def sigmoid_top_k(
    logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    groups: int,
    kept_groups: int,
    normalized: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sigmoid scores of logits [..., experts], chosen by score + ``correction_bias`` [experts], weighted by score.

    Only experts of the ``kept_groups`` of ``groups`` equal groups with the largest sum of two biased scores count.
    The weights are divided by their sum where ``normalized``, then multiplied by ``scaling``. Returns weights and ids
    as softmax_top_k does.
    """
    scores = logits.sigmoid()
    biased = scores + correction_bias
    if kept_groups < groups:
        grouped = biased.unflatten(-1, (groups, -1))
        kept = grouped.topk(2, dim=-1)[0].sum(-1).topk(kept_groups, dim=-1)[1]
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, kept, False)
        biased = grouped.masked_fill(dropped[..., None], torch.finfo(biased.dtype).min).flatten(-2)
    ids = biased.topk(top_k, dim=-1)[1]
    weights = scores.gather(-1, ids)
    if normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + SUM_EPSILON)
    return weights * scaling, ids.int()


def _fake(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights = logits.new_empty((*logits.shape[:-1], top_k))
    return weights, torch.empty_like(weights, dtype=torch.int32)


@softmax_top_k.register_fake
def _(logits: torch.Tensor, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(logits, top_k)


@top_k_softmax.register_fake
def _(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(logits, top_k)


@sigmoid_top_k.register_fake
def _(
    logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    groups: int,
    kept_groups: int,
    normalized: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(logits, top_k)
