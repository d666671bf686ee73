"""When a product takes the norm before it into its kernel. Planned as for a GPU, computed by torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.torch.ops.linear import Linear, Operands
from tests.runtime.torch.planned_kernels import PlannedKernels


@pytest.mark.parametrize(
    ("norm_dtype", "calls"),
    [(torch.bfloat16, {"linear_decode": 1}), (torch.float32, {"rms_norm": 1, "linear_decode": 1})],
)
def test_a_norm_with_a_weight_of_another_type_is_a_kernel_of_its_own(norm_dtype: torch.dtype, calls: dict) -> None:
    """ONNX allows a norm's weight to be wider than x; the product's kernel reads it as what x is."""
    torch.manual_seed(0)
    kernels = PlannedKernels()
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(24, 64).bfloat16()
    norm_weight = torch.randn(64).to(norm_dtype)
    y = Linear("none", 1e-5, None, kernels)(Operands(x, weight, norm_weight=norm_weight))
    wide = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * norm_weight.double()
    expected = wide @ weight.double().t()
    assert float((y.double() - expected).norm() / expected.norm()) < 1e-2
    assert kernels.calls == calls
