"""RMS norms: the plain one, Mamba2's grouped and gated one, and the gated one of a single head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hybridge.exporter.ops.grouped_rms_norm import grouped_rms_norm
from hybridge.exporter.ops.rms_norm import rms_norm


class RmsNorm(nn.Module):
    """x / rms(x) * (weight + offset) over the last axis, statistics in float32.

    With an offset all of it is in float32: next to 1, a weight in 16 bits would lose most of its digits.
    """

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.offset = eps, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> [..., size]."""
        if self.offset:
            # A cast that changes nothing would rename the initializer in the graph.
            weight = self.weight if self.weight.dtype is torch.float32 else self.weight.float()
            return rms_norm(x.float(), weight + self.offset, self.eps).to(x.dtype)
        return rms_norm(x, self.weight, self.eps)


class GatedRmsNorm(nn.Module):
    """Grouped RMS norm with a SiLU gate, applied before the norm (Mamba2's default) or after it."""

    def __init__(self, size: int, groups: int, eps: float, norm_before_gate: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.groups, self.eps, self.norm_before_gate = groups, eps, norm_before_gate

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, gate [b, t, size] -> [b, t, size]; gate and statistics in float32."""
        wide, silu = x.float(), nn.functional.silu(gate.float())
        if self.norm_before_gate:
            normed = grouped_rms_norm(wide, self.groups, self.eps).to(x.dtype)
            return (normed * self.weight) * silu.to(x.dtype)
        return grouped_rms_norm(wide * silu, self.groups, self.eps).to(x.dtype) * self.weight


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": nn.functional.silu, "sigmoid": torch.sigmoid}
"""Activations of the gate of a gated delta net."""


class GatedHeadNorm(nn.Module):
    """RMS norm of every head, then times SiLU or the sigmoid of the gate (gated delta net)."""

    def __init__(self, size: int, eps: float, activation: str = "silu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps, self.gate = eps, GATES[activation]

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, gate [b, t, heads, size] -> the same; the gate in float32."""
        normed = rms_norm(x, self.weight, self.eps)
        return (normed.float() * self.gate(gate.float())).to(x.dtype)
