"""Eager ``causal_conv1d``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.trt_plugins.reference.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.reference.precision import work_dtype


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, context_lengths: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution with a carried state.

    Args:
        x: [batch, time, conv_dim], or [batch, conv_dim] for one token per row.
        weight: [conv_dim, 1, kernel], oldest tap first.
        bias: [conv_dim] or None.
        conv_state: [batch, conv_dim, kernel], oldest column first.
        context_lengths: [batch] int32.
        activation: "none" or "silu".

    Returns:
        y like x, zero at padding; conv_state_out like conv_state.
    """
    tokens = x.unsqueeze(1) if x.ndim == 2 else x
    time, kernel = tokens.shape[1], weight.shape[2]
    lengths = clamped_lengths(context_lengths, time)
    columns = torch.cat([conv_state, tokens.transpose(1, 2)], dim=2)  # [batch, conv_dim, kernel + time]
    y = _taps_sum(columns.to(work_dtype(x)), weight, time)
    if bias is not None:
        y = y + bias.to(y.dtype)[None, :, None]
    if activation == "silu":
        y = F.silu(y)
    y = y.masked_fill(~valid_tokens(lengths, time)[:, None, :], 0.0)
    last = lengths[:, None] + torch.arange(kernel, device=x.device)  # [batch, kernel]
    state = columns.gather(2, last[:, None, :].expand(-1, columns.shape[1], -1))
    return y.transpose(1, 2).to(x.dtype).reshape(x.shape).contiguous(), state


def _taps_sum(columns: Tensor, weight: Tensor, time: int) -> Tensor:
    """sum_j weight[:, j] * columns[:, :, 1 + j + t] for t in 0..time-1, as [batch, conv_dim, time]."""
    taps = weight.to(columns.dtype)[None, :, 0, :, None]  # [1, conv_dim, kernel, 1]
    y = columns[:, :, 1 : 1 + time] * taps[:, :, 0]
    for j in range(1, weight.shape[2]):
        y = y + columns[:, :, 1 + j : 1 + j + time] * taps[:, :, j]
    return y
