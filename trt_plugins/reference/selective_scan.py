"""Eager ``selective_scan``: Mamba1's recurrence, token by token (arXiv 2312.00752, algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype
from hybridge.trt_plugins.reference.update_ssm_state import time_step


def selective_scan(
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    context_lengths: Tensor,
    dt_softplus: int,
    time_step_min: float,
    time_step_max: float,
) -> tuple[Tensor, Tensor]:
    """Selective scan of one call, prefill or decode.

    Args:
        x, dt: [batch, time, channels]; without the time axis for one token per row, and so B and C.
        A: [channels, state_size], float32. B, C: [batch, time, groups, state_size]. D, dt_bias: [channels].
        state: [batch, 1, channels, state_size]. context_lengths: [batch] int32.
        dt_softplus, time_step_min, time_step_max: see the operator's declaration.

    Returns:
        y like x, zero at padding; state_out like state, bit-identical for rows of length 0.
    """
    if x.ndim == 2:
        x, B, C, dt = x.unsqueeze(1), B.unsqueeze(1), C.unsqueeze(1), dt.unsqueeze(1)
        y, state = selective_scan(
            x, A, B, C, D, dt, dt_bias, state, context_lengths, dt_softplus, time_step_min, time_step_max
        )
        return y.squeeze(1), state
    work, channels_of_group = work_dtype(x), x.shape[2] // B.shape[2]
    lengths = clamped_lengths(context_lengths, x.shape[1])
    valid = valid_tokens(lengths, x.shape[1])[:, :, None]
    step = time_step(dt.to(work) + dt_bias.to(work), dt_softplus, time_step_min, time_step_max)
    step, xs = step.masked_fill(~valid, 0.0), x.to(work).masked_fill(~valid, 0.0)
    B, C = (tensor.to(work).masked_fill(~valid[..., None], 0.0) for tensor in (B, C))
    last, y = state[:, 0].to(work), torch.empty_like(xs)
    for t in range(x.shape[1]):
        read, written = (tensor[:, t].repeat_interleave(channels_of_group, 1) for tensor in (C, B))
        decay = (step[:, t, :, None] * A.to(work)).exp()
        last = decay * last + (step[:, t] * xs[:, t]).unsqueeze(-1) * written
        y[:, t] = (last * read).sum(-1)
    y = (y + D.to(work) * xs).masked_fill(~valid, 0.0)
    touched = lengths[:, None, None, None] > 0
    return y.to(x.dtype), torch.where(touched, last.unsqueeze(1).to(state.dtype), state)
