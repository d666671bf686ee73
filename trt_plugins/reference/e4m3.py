"""Keys and values in e4m3: every head of a token is numbers of 8 bits times one power of two."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
_MANTISSA, _BINADE, _LOWEST = 0.875, 9, -126  # 448 is 0.875 * 2^9


def e4m3_from(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` [..., n] as float8_e4m3fn like it, rounded to nearest even, and float32 scales [...].

    A scale is the smallest power of two, 2^-126 at least, that the largest magnitude is at most 448 times of; where a
    number is not finite, it is none.
    """
    largest = x.float().abs().amax(-1)
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - _BINADE + (mantissa > _MANTISSA).to(exponent.dtype)
    exponent = torch.where(largest > 0, exponent, _LOWEST).clamp(_LOWEST)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    return (x.float() / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale


def exact_from_e4m3(numbers: Tensor, scale: Tensor) -> Tensor:
    """The values of numbers and scales, float64."""
    return numbers.double() * scale.double().unsqueeze(-1)
