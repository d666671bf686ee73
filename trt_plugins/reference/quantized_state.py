"""A recurrent state in 8 bits: every row is numbers of one type times one float32."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Types of a state, and what the largest magnitude of a row becomes."""


def quantized_state(state: Tensor, dtype: torch.dtype, axis: int = -1) -> tuple[Tensor, Tensor]:
    """``state`` as ``dtype`` like it, and float32 factors without ``axis``; rounded to nearest even.

    A row is the numbers along ``axis``. Its factor is its largest magnitude over LARGEST, 0 for a row of zeros and not
    a number where one of its numbers is not finite. UnsupportedError for other types.
    """
    if dtype not in LARGEST:
        raise UnsupportedError(f"expected a state of {' or '.join(map(str, LARGEST))}, found {dtype}; use one of them")
    largest = state.abs().amax(axis)
    scale = torch.where(largest.isfinite(), largest / LARGEST[dtype], torch.nan).float()
    unit = torch.where(scale > 0, scale, 1.0).to(state.dtype).unsqueeze(axis)
    values = (state / unit).clamp(-LARGEST[dtype], LARGEST[dtype])
    # The cast to e4m3 rounds to nearest even from float32.
    return (values.round() if dtype is torch.int8 else values.float()).to(dtype), scale


def exact_state(values: Tensor, scale: Tensor, axis: int = -1) -> Tensor:
    """The values of a quantized state, float64."""
    return values.to(torch.float64) * scale.double().unsqueeze(axis)
