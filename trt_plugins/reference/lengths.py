"""Valid tokens of right-padded rows."""

from __future__ import annotations

import torch
from torch import Tensor


def clamped_lengths(context_lengths: Tensor, time: int) -> Tensor:
    """``context_lengths`` [batch] as int64, clamped to 0..time."""
    return context_lengths.to(torch.int64).clamp(0, time)


def valid_tokens(lengths: Tensor, time: int) -> Tensor:
    """Bool mask [batch, time]: token t of row b counts where t < lengths[b]."""
    return torch.arange(time, device=lengths.device)[None, :] < lengths[:, None]
