"""Eager activations with a small relative error on both tails; torch's own GELU cancels where x is below -2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.trt_plugins.reference.precision import work_dtype


def gelu(x: Tensor) -> Tensor:
    """relu(x) - |x| Phi(-|x|) = x (1 + erf(x / sqrt(2))) / 2, computed in float32 at least."""
    wide = x.to(work_dtype(x))
    below = wide.abs() * 0.5 * torch.special.erfcx(wide.abs() * sqrt(0.5)) * torch.exp(wide * wide * -0.5)
    return (F.relu(wide) - below).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """x sigmoid(2 u) = x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), computed in float32 at least."""
    wide = x.to(work_dtype(x))
    linear = -2.0 * sqrt(2.0 / pi)
    # The two terms of -2 u apart: their sum, up to 69, would be rounded again.
    power = torch.exp(wide * (wide * wide * (linear * 0.044715))) * torch.exp(wide * linear)
    return (wide / (1.0 + power)).to(x.dtype)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "gelu": gelu,
        "gelu_pytorch_tanh": gelu_tanh,
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square(),
    }
)
