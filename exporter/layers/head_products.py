"""Products by matrices of each head."""

from __future__ import annotations

import torch


def by_head(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """x [..., tokens, heads, n] times ``matrices`` [heads, n, m]: [..., tokens, heads, m]."""
    return torch.matmul(x.transpose(-3, -2), matrices).transpose(-3, -2)


def by_rows_of_head(matrices: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """As ``by_head`` with ``matrices`` [heads, m, n] as linear layers store them: what is transposed is ``x``."""
    before, after = ((0, 2, 3, 1), (0, 3, 1, 2)) if x.ndim == 4 else ((1, 2, 0), (2, 0, 1))
    return torch.matmul(matrices, x.permute(before)).permute(after)
