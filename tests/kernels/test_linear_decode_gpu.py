"""``linear_decode`` on the GPU against float64, on fresh outputs full of NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import DeviceTraits
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode, plan
from tests.support.kernel_calls import ORIN, run_plan

pytestmark = pytest.mark.gpu

BF16, F16, F32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32
# Relative norm against float64: float accumulation, then one rounding of y (none for float32).
TOLERANCE = {F32: 2e-3, F16: 3e-3, BF16: 3e-3}
BASE = LinearDecode(rows=3, inputs=520, outputs=264, dtype=BF16, out_dtype=BF16)


def torch_type(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.value)


def tensors(problem: LinearDecode) -> list[torch.Tensor | None]:
    """x, weight, up_weight, bias, residual, norm_weight."""
    torch.manual_seed(0)
    dtype = torch_type(problem.dtype)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device="cuda") * scale).to(dtype)

    def rows(size: int, stride: int | None) -> torch.Tensor:
        return normal(problem.rows, stride or size)[:, :size]

    weight_shape, scale = (problem.outputs, problem.inputs), problem.inputs**-0.5
    return [
        rows(problem.inputs, problem.x_stride),
        normal(*weight_shape, scale=scale),
        normal(*weight_shape, scale=scale) if problem.activation == "silu_gate" else None,
        normal(problem.outputs) if problem.bias else None,
        rows(problem.outputs, problem.residual_stride) if problem.residual else None,
        normal(problem.inputs) if problem.norm_epsilon is not None else None,
    ]


def reference(problem: LinearDecode, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    x, weight, up_weight, bias, residual, norm_weight = (None if t is None else t.double() for t in inputs)
    if norm_weight is not None:
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + problem.norm_epsilon) * norm_weight
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    if up_weight is not None:
        y = torch.nn.functional.silu(y) * (x @ up_weight.T)
    if problem.activation == "relu2":
        y = y.relu().square()
    return y if residual is None else y + residual


def run(problem: LinearDecode, inputs: list[torch.Tensor | None], traits: DeviceTraits | None = None) -> torch.Tensor:
    stride = problem.y_stride or problem.outputs
    memory = torch.full((problem.rows, stride), float("nan"), dtype=torch_type(problem.out_dtype), device="cuda")
    y = memory[:, : problem.outputs]
    run_plan(plan(problem, traits or KernelDevice.current().traits), inputs, [y])
    assert memory[:, problem.outputs :].isnan().all(), "wrote between the rows"
    return y


def check(problem: LinearDecode) -> None:
    """With the kernel for this GPU, and with the one for GPUs before sm_90, which runs on all."""
    inputs = tensors(problem)
    expected = reference(problem, inputs)
    for traits in (KernelDevice.current().traits, ORIN):
        error = float((run(problem, inputs, traits).double() - expected).norm() / expected.norm())
        assert error <= TOLERANCE[problem.out_dtype], f"relative error {error:.3g} for {traits.capability}"


@pytest.mark.parametrize("rows", range(1, 17))
def test_rows(rows):
    check(replace(BASE, rows=rows))


@pytest.mark.parametrize("inputs", [8, 24, 32, 248, 256, 264, 2048, 4096, 21504])
@pytest.mark.parametrize("rows", [1, 9])
def test_inputs(inputs, rows):
    check(replace(BASE, inputs=inputs, rows=rows))


@pytest.mark.parametrize("inputs", [8192, 21504])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_several_groups_of_outputs_and_phases_of_inputs(inputs, rows):
    problem = replace(BASE, inputs=inputs, outputs=4096, rows=rows)
    check(problem)
    given = tensors(problem)
    first = run(problem, given)
    assert all(torch.equal(first, run(problem, given)) for _ in range(5))


@pytest.mark.parametrize("outputs", [1, 7, 8, 31, 33, 1057, 4096, 18560])
@pytest.mark.parametrize("rows", [2, 16])
def test_outputs(outputs, rows):
    check(replace(BASE, outputs=outputs, rows=rows))


@pytest.mark.parametrize(("rows", "norm_epsilon"), [(1, None), (8, None), (13, None), (1, 1e-5), (8, 1e-5)])
@pytest.mark.parametrize("activation", ["none", "relu2", "silu_gate"])
def test_prologue_and_epilogue(activation, rows, norm_epsilon):
    problem = replace(
        BASE, rows=rows, activation=activation, norm_epsilon=norm_epsilon, residual=True, bias=activation != "silu_gate"
    )
    check(problem)
    check(replace(problem, outputs=4001, inputs=1032, residual=False, bias=False))
    check(replace(problem, outputs=2100, inputs=8200))


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("out_dtype", [F16, BF16, F32])
def test_types(dtype, out_dtype):
    check(replace(BASE, dtype=dtype, out_dtype=out_dtype, bias=True))


def test_rows_may_be_slices():
    check(replace(BASE, residual=True, x_stride=640, residual_stride=301, y_stride=300))


def test_the_residual_may_be_updated_in_place():
    problem = replace(BASE, residual=True, outputs=4096, rows=8)
    inputs = tensors(problem)
    expected = run(problem, inputs)
    run_plan(plan(problem, KernelDevice.current().traits), inputs, [inputs[4]])
    assert torch.equal(inputs[4], expected)


def test_a_row_does_not_depend_on_the_others():
    inputs = tensors(replace(BASE, rows=16, inputs=4096))
    together = run(replace(BASE, rows=16, inputs=4096), inputs)
    for rows in (1, 8):
        alone = run(replace(BASE, rows=rows, inputs=4096), [inputs[0][:rows], *inputs[1:]])
        assert torch.equal(alone, together[:rows])


def test_results_are_the_same_from_run_to_run():
    problem = replace(BASE, rows=8, inputs=4096, outputs=18560)
    inputs = tensors(problem)
    first = run(problem, inputs)
    assert all(torch.equal(first, run(problem, inputs)) for _ in range(3))
