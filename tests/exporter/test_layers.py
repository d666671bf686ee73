"""Layers against their formulas in float64, where no family of transformers computes the variant."""

from __future__ import annotations

import pytest
import torch

from hybridge.exporter.layers.norm import GatedRmsNorm


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, groups: int, first: bool) -> torch.Tensor:
    """Norm of each group, times weight, times silu(gate), in float64; ``first``: the norm comes before the gate."""
    x, gate, weight = x.double(), gate.double(), weight.double()
    silu = gate / (1 + torch.exp(-gate))
    if not first:
        x = x * silu
    parts = [part * ((part**2).mean(-1, keepdim=True) + 1e-5) ** -0.5 for part in x.chunk(groups, dim=-1)]
    normed = torch.cat(parts, dim=-1) * weight
    return normed * silu if first else normed


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)], ids=str)
def test_gated_norm(groups: int, norm_before_gate: bool, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x, gate = (torch.randn(2, 5, 21, generator=generator).to(dtype) * scale for scale in (3.0, 1.5))
    layer = GatedRmsNorm(21, groups, 1e-5, norm_before_gate).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(1 + 0.3 * torch.randn(21, generator=generator))
        found = layer(x, gate)
    expected = gated_norm(x, gate, layer.weight, groups, norm_before_gate)
    assert found.dtype is dtype
    assert ((found.double() - expected).norm() / expected.norm()).item() < tolerance
