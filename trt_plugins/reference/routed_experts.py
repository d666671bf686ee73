"""Eager ``routed_experts``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.reference.activations import ACTIVATIONS
from hybridge.trt_plugins.reference.precision import work_dtype
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation


def routed_experts(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
    gated: int,
    alpha: float = 1.0,
    limit: float = math.inf,
    offset: float = 0.0,
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
        up_bias, down_bias: [experts, rows of up_weight], [experts, hidden] or None.
        activation: a name in ``reference.activations.ACTIVATIONS``.
        gated: 0 or 1.
        alpha, limit, offset: as the declaration has them.

    Returns:
        y like x.
    """
    experts = (up_weight, down_weight, up_bias, down_bias)
    form = ExpertActivation(activation, bool(gated), alpha, limit, offset)
    return experts_of_tokens(x, expert_ids, expert_weights, experts, form)


def expert_activation(up: Tensor, form: ExpertActivation) -> Tensor:
    """up [..., up_size] -> [..., intermediate]."""
    if not form.gated:
        return _activated(up, form)
    gate, up = up.chunk(2, dim=-1)
    if form.limit < math.inf:
        gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
    return _activated(gate, form) * (up + form.offset if form.offset else up)


def _activated(x: Tensor, form: ExpertActivation) -> Tensor:
    if form.name == "silu" and form.alpha != 1.0:
        return x * torch.sigmoid(x * form.alpha)
    return ACTIVATIONS[form.name](x)


# Inputs [tokens, features] of an expert's product, and its number.
Rounding = Callable[[Tensor, int], Tensor]


def experts_of_tokens(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    form: ExpertActivation,
    rounds: tuple[Rounding, Rounding] | None = None,
) -> Tensor:
    """``routed_experts``, with inputs of the two products rounded by ``rounds``; experts: weights and biases."""
    up_weight, down_weight, up_bias, down_bias = experts
    _check_sizes(up_weight, down_weight, form.gated)
    round_up, round_down = rounds or (_as_they_are, _as_they_are)
    tokens, ids = x.reshape(-1, x.shape[-1]).to(work_dtype(x)), expert_ids.reshape(-1, expert_ids.shape[-1])
    results = tokens.new_zeros((*ids.shape, tokens.shape[-1]))
    for expert in ids.unique().tolist():
        up = F.linear(round_up(tokens, expert), *_own(up_weight, up_bias, expert, tokens.dtype))
        inner = expert_activation(up, form)
        y = F.linear(round_down(inner, expert), *_own(down_weight, down_bias, expert, tokens.dtype))
        results = torch.where((ids == expert)[..., None], y[:, None], results)
    weights = expert_weights.reshape(ids.shape).to(tokens.dtype)
    return (results * weights[..., None]).sum(1).to(x.dtype).reshape(x.shape)


def _own(weight: Tensor, bias: Tensor | None, expert: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight[expert].to(dtype), None if bias is None else bias[expert].to(dtype)


def _as_they_are(values: Tensor, _expert: int) -> Tensor:
    return values


def _check_sizes(up_weight: Tensor, down_weight: Tensor, gated: bool) -> None:
    expected = down_weight.shape[2] * (2 if gated else 1)
    if up_weight.shape[1] != expected:
        raise UnsupportedError(
            f"routed_experts: expected up_weight of {expected} rows an expert with gated {gated:d}, found "
            f"{up_weight.shape[1]}; change the attribute or the tensor"
        )
