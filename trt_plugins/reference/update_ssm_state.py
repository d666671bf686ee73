"""Eager ``update_ssm_state``: Mamba2's selective state update as a chunked scan.

Source of the chunked form: "Transformers are SSMs" (arXiv 2405.21060), section 6. Decays inside a chunk are
exponentials of segment sums, never of differences of long running sums, so that the error does not grow with the
length and survives strong decay next to almost none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype


def update_ssm_state(
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
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Selective state update of one call, prefill or decode.

    Args:
        x: [batch, time, heads, head_dim]; without the time axis for one token per row, and so B, C and dt.
        A: [heads], float32. B, C: [batch, time, groups, state_size]. D: [heads].
        dt: [batch, time, heads]. dt_bias: [heads].
        state: [batch, heads, head_dim, state_size]. context_lengths: [batch] int32.
        dt_softplus, time_step_min, time_step_max: see the operator's declaration.
        chunk_size: most tokens handled as one matrix.

    Returns:
        y like x, zero at padding; state_out like state, bit-identical for rows of length 0.
    """
    if x.ndim == 3:
        x, B, C, dt = x.unsqueeze(1), B.unsqueeze(1), C.unsqueeze(1), dt.unsqueeze(1)
        y, state = update_ssm_state(
            x, A, B, C, D, dt, dt_bias, state, context_lengths, dt_softplus, time_step_min, time_step_max, chunk_size
        )
        return y.squeeze(1), state
    work, heads, groups = work_dtype(x), x.shape[2], B.shape[2]
    lengths = clamped_lengths(context_lengths, x.shape[1])
    valid = valid_tokens(lengths, x.shape[1])[:, :, None, None]
    step = time_step(dt.to(work) + dt_bias.to(work), dt_softplus, time_step_min, time_step_max)
    step = step.masked_fill(~valid[..., 0], 0.0)
    xs = x.to(work)
    y, last = _scan(
        _grouped((xs * step.unsqueeze(-1)).masked_fill(~valid, 0.0), groups),
        _grouped(step * A.to(work), groups),
        B.to(work).masked_fill(~valid, 0.0),
        C.to(work),
        state.to(work).unflatten(1, (groups, heads // groups)),
        chunk_size,
    )
    y = (y.flatten(2, 3) + D.to(work)[:, None] * xs).masked_fill(~valid, 0.0)
    last = torch.where(lengths[:, None, None, None] > 0, last.flatten(1, 2).to(state.dtype), state)
    return y.to(x.dtype), last


def time_step(dt: Tensor, dt_softplus: int, time_step_min: float, time_step_max: float) -> Tensor:
    """``dt``, after its bias, as the time step that the recurrence uses."""
    return (F.softplus(dt) if dt_softplus else dt).clamp(time_step_min, time_step_max)


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    """[batch, time, heads, ...] as [batch, time, groups, heads of a group, ...]."""
    return tensor.unflatten(2, (groups, tensor.shape[2] // groups))


def _scan(xdt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Chunks in sequence, the tokens of a chunk in parallel.

    Shapes, with b batch, t time, g groups, r heads of a group, p head_dim, n state_size: xdt [b, t, g, r, p],
    log_decay [b, t, g, r], B and C [b, t, g, n], state [b, g, r, p, n]. Returns y like xdt and the last state.
    """
    y = torch.empty_like(xdt)
    for start in range(0, xdt.shape[1], chunk):
        part = slice(start, start + chunk)
        y[:, part], state = _scan_chunk(xdt[:, part], log_decay[:, part], B[:, part], C[:, part], state)
    return y, state


def _scan_chunk(xdt: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk; i is the reading token, j the writing one."""
    a = log_decay.permute(0, 2, 3, 1)  # [b, g, r, t]
    decay = _segment_decay(a)  # [b, g, r, i, j]
    from_start = a.cumsum(-1).exp()  # [b, g, r, i]
    scores = torch.einsum("bign,bjgn->bgij", C, B).unsqueeze(2) * decay
    y = torch.einsum("bgrij,bjgrp->bigrp", scores, xdt)
    y = y + torch.einsum("bign,bgrpn,bgri->bigrp", C, state, from_start)
    written = torch.einsum("bgrj,bjgrp,bjgn->bgrpn", decay[..., -1, :], xdt, B)
    return y, state * from_start[..., -1, None, None] + written


def _segment_decay(a: Tensor) -> Tensor:
    """exp(a[j+1] + ... + a[i]) for j <= i and 0 for j > i, from a [..., t] to [..., i, j]."""
    time = a.shape[-1]
    later = torch.ones(time, time, dtype=torch.bool, device=a.device).tril(-1)  # row after column
    sums = a.unsqueeze(-1).masked_fill(~later, 0.0).cumsum(-2)
    return sums.exp().masked_fill(later.T, 0.0)
