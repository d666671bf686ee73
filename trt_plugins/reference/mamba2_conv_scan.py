"""Eager ``mamba2_conv_scan``: the convolution, the state update of what comes out, and the gate."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from hybridge.trt_plugins.specs.mamba2_conv_scan import group_count


def mamba2_conv_scan(
    conv_input: Tensor,
    gate: Tensor,
    dt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    conv_state: Tensor,
    state: Tensor,
    context_lengths: Tensor,
    activation: str,
    dt_softplus: int,
    time_step_min: float,
    time_step_max: float,
    chunk_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mamba2's mixer between its projections, prefill or decode; nothing between its parts is rounded.

    Args:
        conv_input: [batch, time, conv_dim], x then B then C; without the time axis for one token per row, and so gate
            [batch, time, inner] and dt [batch, time, heads].
        conv_weight, conv_bias, conv_state, activation: see causal_conv1d.
        A, D, dt_bias: [heads]. state: [batch, heads, head_dim, state_size]. context_lengths: [batch] int32.
        dt_softplus, time_step_min, time_step_max, chunk_size: see update_ssm_state.

    Returns:
        y like gate, zero at padding; conv_state_out and state_out like the states.

    Raises:
        UnsupportedError: the channels are not x, B and C of a whole number of groups.
    """
    work, (heads, head_dim, state_size) = work_dtype(conv_input), state.shape[1:]
    groups = _checked_groups(conv_input.shape[-1], gate.shape[-1], heads, head_dim, state_size)
    bias = None if conv_bias is None else conv_bias.to(work)
    mixed, conv_state_out = causal_conv1d(
        conv_input.to(work), conv_weight.to(work), bias, conv_state.to(work), context_lengths, activation
    )
    x, B, C = mixed.split([heads * head_dim, groups * state_size, groups * state_size], dim=-1)
    y, state_out = update_ssm_state(
        x.unflatten(-1, (heads, head_dim)),
        A,
        B.unflatten(-1, (groups, state_size)),
        C.unflatten(-1, (groups, state_size)),
        D,
        dt.to(work),
        dt_bias,
        state,
        context_lengths,
        dt_softplus,
        time_step_min,
        time_step_max,
        chunk_size,
    )
    gated = y.flatten(-2) * F.silu(gate.to(work))
    time = gate.shape[1] if gate.ndim == 3 else 1
    valid = valid_tokens(clamped_lengths(context_lengths, time), time).view(*gate.shape[:-1], 1)
    return gated.masked_fill(~valid, 0.0).to(gate.dtype), conv_state_out.to(conv_state.dtype), state_out


def _checked_groups(conv_dim: int, gate_dim: int, heads: int, head_dim: int, state_size: int) -> int:
    """How many groups of B and C the ``conv_dim`` channels hold."""
    inner = heads * head_dim
    groups = group_count(conv_dim, inner, state_size)
    if gate_dim != inner or groups == 0 or heads % groups:
        raise UnsupportedError(
            f"mamba2_conv_scan: expected a gate of {inner} channels and a conv_dim of {inner} + 2 * groups * "
            f"{state_size} where groups divides {heads}, found {gate_dim} and {conv_dim}; "
            "check the split of the projection"
        )
    return groups
