"""Eager ``rounded_experts``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.routed_experts import experts_of_tokens
from hybridge.trt_plugins.specs.rounded_experts import INT8, NVFP4, STATIC
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

_LARGEST = {"int8": 127.0, "fp8": 448.0, "nvfp4": 6.0}
# The smallest divisor, for features that are all zero.
_LEAST_SCALE = 1e-30


def rounded_experts(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    up_input_scale: Tensor,
    down_input_scale: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    activation: str,
    gated: int,
    alpha: float,
    limit: float,
    offset: float,
    rounding: str,
    group: int,
) -> Tensor:
    """``routed_experts`` with rounded inputs of both products; up_input_scale, down_input_scale [experts]."""

    def inputs(values: Tensor, expert: int, scales: Tensor) -> Tensor:
        return rounded(values, scales[expert], rounding, group)

    rounds = partial(inputs, scales=up_input_scale), partial(inputs, scales=down_input_scale)
    experts = (up_weight, down_weight, up_bias, down_bias)
    form = ExpertActivation(activation, bool(gated), alpha, limit, offset)
    return experts_of_tokens(x, expert_ids, expert_weights, experts, form, rounds)


def rounded(x: Tensor, scale: Tensor, rounding: str, group: int) -> Tensor:
    """x [tokens, features] rounded to numbers of a type times scales; ``scale`` [] as the declaration has it."""
    groups = x.unflatten(-1, (-1, group)) if group > 0 else x
    largest = groups.abs().amax(-1, keepdim=True) / _LARGEST[rounding]
    if rounding == NVFP4:
        scales = _e4m3(largest / scale) * scale
        divisor = scales.clamp(_LEAST_SCALE)
    else:
        scales = divisor = scale.to(x.dtype) if group == STATIC else largest.clamp(_LEAST_SCALE)
    numbers = groups / divisor
    if rounding == INT8:
        numbers = numbers.round().clamp(-128, 127)
    else:
        numbers = _e2m1(numbers) if rounding == NVFP4 else _e4m3(numbers)
    return (numbers * scales).reshape(x.shape)


def _e4m3(numbers: Tensor) -> Tensor:
    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn).to(numbers.dtype)


def _e2m1(numbers: Tensor) -> Tensor:
    """Numbers below 2 are multiples of 1/2, those below 4 of 1, others of 2; ties go to even multiples."""
    sizes = numbers.abs()
    steps = torch.where(sizes < 2, 0.5, torch.where(sizes < 4, 1.0, 2.0)).to(numbers.dtype)
    return ((numbers / steps).round() * steps).clamp(-6, 6)
