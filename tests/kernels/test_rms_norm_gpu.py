"""``rms_norm`` on the GPU against float64, on fresh outputs full of NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.rms_norm import RmsNorm, plan
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu

TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 3e-3, DType.BFLOAT16: 3e-3}
BASE = RmsNorm(rows=3, columns=1024, dtype=DType.BFLOAT16, epsilon=1e-5)


def tensors(problem: RmsNorm) -> dict[str, torch.Tensor | None]:
    torch.manual_seed(0)
    dtype = getattr(torch, problem.dtype.value)

    def rows(name: str) -> torch.Tensor:
        return torch.randn(problem.rows, problem.stride(name), device="cuda").to(dtype)[:, : problem.columns]

    return {
        "x": rows("x"),
        "residual": rows("residual") if problem.residual else None,
        "gate": rows("gate") if problem.gate or problem.gate_after else None,
        "weight": torch.randn(problem.columns, device="cuda").to(getattr(torch, problem.stored_weight.value)),
    }


def reference(problem: RmsNorm, inputs: dict[str, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    values = inputs["x"].double()
    if problem.gate:
        values = values * torch.nn.functional.silu(inputs["gate"].double())
    if problem.residual:
        values = (values + inputs["residual"].double()).to(inputs["x"].dtype).double()
    groups = values.view(problem.rows, -1, problem.group_columns)
    normed = groups * torch.rsqrt(groups.square().mean(2, keepdim=True) + problem.epsilon)
    y = normed.reshape(values.shape) * inputs["weight"].double()
    return y * torch.nn.functional.silu(inputs["gate"].double()) if problem.gate_after else y, values


def check(problem: RmsNorm, in_place: bool = False) -> None:
    inputs = tensors(problem)
    expected, expected_sum = reference(problem, inputs)
    y = torch.full((problem.rows, problem.stride("y")), float("nan"), dtype=inputs["x"].dtype, device="cuda")
    summed = inputs["residual"] if in_place else torch.full_like(inputs["x"], float("nan"))
    outputs = [y[:, : problem.columns], summed if problem.residual else None]
    run_plan(plan(problem, KernelDevice.current().traits), list(inputs.values()), outputs)
    error = float((outputs[0].double() - expected).norm() / expected.norm())
    assert error <= TOLERANCE[problem.dtype], f"relative error {error:.3g}"
    assert y[:, problem.columns :].isnan().all()
    if problem.residual:
        assert torch.equal(summed.double(), expected_sum)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "form",
    [{}, {"residual": True}, {"gate": True}, {"gate_after": True}, {"weight_dtype": DType.FLOAT32}],
    ids=["plain", "residual", "gate", "gate after", "wide weight"],
)
def test_types_and_forms(form, dtype):
    check(replace(BASE, dtype=dtype, **form))
    check(replace(BASE, dtype=dtype, columns=129, **form))


@pytest.mark.parametrize("columns", [1, 7, 8, 1000, 4096, 8192, 21504, 32768])
def test_columns(columns):
    check(replace(BASE, columns=columns, residual=True))


@pytest.mark.parametrize("group", [64, 100, 1024])
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_groups(group, rows):
    check(replace(BASE, rows=rows, columns=8 * group, group=group, gate=True))


@pytest.mark.parametrize("form", [{}, {"gate_after": True}, {"residual": True}])
def test_more_rows_than_one_axis_of_a_grid_has(form):
    check(replace(BASE, rows=65537, columns=128, **form))
    check(replace(BASE, rows=131073, columns=128, group=64, **form))


def test_rows_may_be_slices():
    check(replace(BASE, gate=True, strides=(("x", 1032), ("gate", 3000), ("y", 1025))))


def test_the_sum_may_replace_the_residual():
    check(replace(BASE, residual=True), in_place=True)
