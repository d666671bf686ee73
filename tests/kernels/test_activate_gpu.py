"""``activate`` on the GPU against float64; elements before and after those of the call stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.activate import Activate, plan
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu

TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 1e-3, DType.BFLOAT16: 4e-3}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("activation", ["relu2", "silu_gate"])
@pytest.mark.parametrize("count", [8, 8 * 1023, 8 * 1024 * 3 + 8])
def test_matches_float64(count: int, activation: str, dtype: DType) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype.value)
    up = (3 * torch.randn(count, device="cuda")).to(kind)
    memory = torch.full((count + 16,), float("nan"), dtype=kind, device="cuda")
    y = memory[8:-8]
    y.copy_(3 * torch.randn(count, device="cuda"))
    y[:4] = torch.tensor([0.0, -0.0, 200.0, -200.0])
    wide = y.double()
    expected = F.relu(wide).square() if activation == "relu2" else F.silu(wide) * up.double()
    problem = Activate(count, dtype, activation)  # type: ignore[arg-type]
    run_plan(plan(problem, KernelDevice.current().traits), [up if problem.is_gated else None], [y])
    assert float((y.double() - expected).norm() / expected.norm()) <= TOLERANCE[dtype]
    assert memory[:8].isnan().all() and memory[-8:].isnan().all()


@pytest.mark.parametrize("activation", ["relu2", "silu_gate"])
def test_a_nan_stays(activation: str) -> None:
    y = torch.tensor([float("nan")] + 7 * [1.0], dtype=torch.bfloat16, device="cuda")
    problem = Activate(8, DType.BFLOAT16, activation)  # type: ignore[arg-type]
    up = torch.ones_like(y) if problem.is_gated else None
    run_plan(plan(problem, KernelDevice.current().traits), [up], [y])
    assert y.isnan().tolist() == [True] + 7 * [False]
