"""When a product takes the norm before it into its kernel. Planned as for a GPU, computed by torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch
import torch.nn.functional as F

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


@pytest.mark.parametrize(("outputs", "launches"), [(24, 1), (13, 0)], ids=["whole accesses", "odd"])
@pytest.mark.parametrize("activation", ["relu2", "silu_gate"])
def test_activations_of_many_rows_are_one_pass(activation: str, outputs: int, launches: int) -> None:
    torch.manual_seed(0)
    kernels = PlannedKernels()
    x, weight, up = (
        torch.randn(17, 64).bfloat16(),
        torch.randn(outputs, 64).bfloat16(),
        torch.randn(outputs, 64).bfloat16(),
    )
    gated = activation == "silu_gate"
    y = Linear(activation, None, None, kernels)(Operands(x, weight, up if gated else None))
    product = x.double() @ weight.double().t()
    expected = F.silu(product) * (x.double() @ up.double().t()) if gated else F.relu(product).square()
    assert float((y.double() - expected).norm() / expected.norm()) < 1e-2
    assert kernels.calls["activate"] == launches
