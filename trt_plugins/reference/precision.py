"""The precision that the eager operators compute in."""

from __future__ import annotations

import torch
from torch import Tensor


def work_dtype(x: Tensor) -> torch.dtype:
    """float32 for every data type, float64 for float64 (the reference precision)."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32
