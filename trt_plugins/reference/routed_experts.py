"""Eager ``routed_experts``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.reference.activations import ACTIVATIONS
from hybridge.trt_plugins.reference.precision import work_dtype


def routed_experts(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    gated: int,
) -> Tensor:
    """The weighted sum of each token's experts.

    Every expert that is hit at all computes every token: so a token's result does not depend on which experts other
    tokens chose, not even in its last bit.

    Args:
        x: [batch, time, hidden], or [batch, hidden] for one token a row.
        expert_ids: [batch, (time), top_k] int32.
        expert_weights: [batch, (time), top_k].
        up_weight: [experts, intermediate, hidden], with ``gated`` [experts, 2 * intermediate, hidden], the gate first.
        down_weight: [experts, hidden, intermediate].
        activation: a name in ``reference.activations.ACTIVATIONS``.
        gated: 0 or 1.

    Returns:
        y like x.
    """
    return experts_of_tokens(x, expert_ids, expert_weights, up_weight, down_weight, activation, gated)


# Inputs [tokens, features] of an expert's product, and its number.
Rounding = Callable[[Tensor, int], Tensor]


def experts_of_tokens(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    gated: int,
    rounds: tuple[Rounding, Rounding] | None = None,
) -> Tensor:
    """``routed_experts``, with inputs of the two products rounded by ``rounds``."""
    _check_sizes(up_weight, down_weight, gated)
    round_up, round_down = rounds or (_as_they_are, _as_they_are)
    tokens, ids = x.reshape(-1, x.shape[-1]).to(work_dtype(x)), expert_ids.reshape(-1, expert_ids.shape[-1])
    results = tokens.new_zeros((*ids.shape, tokens.shape[-1]))
    for expert in ids.unique().tolist():
        up = F.linear(round_up(tokens, expert), up_weight[expert].to(tokens.dtype))
        if gated:
            gate, up = up.chunk(2, dim=-1)
            inner = ACTIVATIONS[activation](gate) * up
        else:
            inner = ACTIVATIONS[activation](up)
        y = F.linear(round_down(inner, expert), down_weight[expert].to(tokens.dtype))
        results = torch.where((ids == expert)[..., None], y[:, None], results)
    weights = expert_weights.reshape(ids.shape).to(tokens.dtype)
    return (results * weights[..., None]).sum(1).to(x.dtype).reshape(x.shape)


def _as_they_are(values: Tensor, _expert: int) -> Tensor:
    return values


def _check_sizes(up_weight: Tensor, down_weight: Tensor, gated: int) -> None:
    expected = down_weight.shape[2] * (2 if gated else 1)
    if up_weight.shape[1] != expected:
        raise UnsupportedError(
            f"routed_experts: expected up_weight of {expected} rows an expert with gated {gated}, found "
            f"{up_weight.shape[1]}; change the attribute or the tensor"
        )
