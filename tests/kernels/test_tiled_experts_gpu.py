"""``routed_experts`` of few tokens with 4-bit and 8-bit weights on the GPU; outputs are filled with NaN first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.tiled_experts import TiledExperts, plan
from hybridge.trt_plugins.kernels.fused.weight_tiles import WeightFormat, formats
from hybridge.trt_plugins.reference.routed_experts import routed_experts as reference
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS
from tests.support.kernel_calls import ORIN, run_plan
from tests.support.weights import random_weight

pytestmark = pytest.mark.gpu

# Two products, each with the weights rounded to 16 bits and 3e-3 from float64, like linear_decode.
TOLERANCE = 6e-3
INT4 = WeightFormat("int4", DType.BFLOAT16, 32)
BASE = TiledExperts(
    3, 2, 5, hidden=288, intermediate=96, up=INT4, down=INT4, activation="silu", gated=True, x_stride=288
)


def tensors(problem: TiledExperts, size: float = 1.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs of a launch, and the same with matrices [experts, rows, columns] in place of tiles and factors."""
    torch.manual_seed(0)
    dtype = getattr(torch, problem.up.dtype.value)
    up = random_weight(problem.up, problem.up_rows, problem.hidden, size)
    down = random_weight(problem.down, problem.experts * problem.hidden, problem.intermediate)
    liking = torch.rand(problem.tokens, problem.experts, device="cuda")
    given = [
        torch.randn(problem.tokens, problem.x_stride, device="cuda").to(dtype)[:, : problem.hidden],
        liking.argsort(-1)[:, : problem.top_k].int().contiguous(),
        torch.rand(problem.tokens, problem.top_k, device="cuda"),
    ]
    matrices = (weight.matrix.view(problem.experts, -1, weight.matrix.shape[1]) for weight in (up, down))
    biases = [
        torch.randn(problem.experts, rows, device="cuda").to(dtype)
        for rows in (problem.up_rows // problem.experts, problem.hidden)
        if problem.biased
    ]
    return [*given, *up.tiles(), *down.tiles(), *biases], [*given, *matrices, *(biases or (None, None))]


def run(problem: TiledExperts, inputs: list[torch.Tensor], older: bool = False) -> torch.Tensor:
    y = torch.full((problem.tokens, problem.hidden), float("nan"), dtype=inputs[0].dtype, device="cuda")
    run_plan(plan(problem, ORIN if older else KernelDevice.current().traits), inputs, [y])
    return y


def check(problem: TiledExperts, size: float = 1.0, older: bool = False) -> None:
    inputs, (x, ids, weights, *experts) = tensors(problem, size)
    wide = [None if tensor is None else tensor.double() for tensor in (weights, *experts)]
    form: dict[str, Any] = {n: getattr(problem, n) for n in ("activation", "gated", "alpha", "limit", "offset")}
    expected = reference(x.double(), ids, *wide, **form)
    error = float((run(problem, inputs, older).double() - expected).norm() / expected.norm())
    assert error <= TOLERANCE, f"relative error {error:.3g}"


@pytest.mark.parametrize("form", formats(), ids=str)
@pytest.mark.parametrize("older", [False, True])
def test_formats(form, older):
    check(replace(BASE, up=form, down=form, hidden=384, intermediate=256, x_stride=384), older=older)


@pytest.mark.parametrize("activation", EXPERT_ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_activations(activation, gated):
    check(replace(BASE, activation=activation, gated=gated))


@pytest.mark.parametrize("older", [False, True])
def test_biases_and_a_clamped_gate(older):
    check(replace(BASE, alpha=1.702, limit=0.75, offset=1.0, biased=True), older=older)
    check(replace(BASE, activation="relu", gated=False, biased=True), older=older)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "hidden", "intermediate"),
    [(1, 1, 1, 32, 32), (1, 8, 128, 2048, 768), (8, 8, 16, 2048, 768), (16, 8, 9, 96, 4224), (128, 1, 3, 2048, 32)],
)
def test_sizes(tokens, top_k, experts, hidden, intermediate):
    check(TiledExperts(tokens, top_k, experts, hidden, intermediate, INT4, INT4, "silu", True, hidden))


def test_an_odd_number_of_groups_and_two_formats():
    """72 rows are 9 groups of 8: an expert's last block reads tiles of the next expert and ignores them."""
    up = WeightFormat("e2m1", DType.BFLOAT16, 16, byte_scales=True)
    down = WeightFormat("int8", DType.BFLOAT16)
    for gated in (False, True):
        check(replace(BASE, up=up, down=down, hidden=272, intermediate=72, gated=gated, x_stride=272))


@pytest.mark.parametrize(("size", "gated"), [(1e-30, False), (1e15, True)])
def test_scales_may_be_tiny_or_huge(size, gated):
    check(replace(BASE, activation="relu", gated=gated), size)


def test_rows_may_be_slices_and_a_token_does_not_depend_on_others():
    problem = replace(BASE, tokens=8, x_stride=304)
    inputs, _ = tensors(problem)
    together = run(problem, inputs)
    assert together.isfinite().all() and torch.equal(together, run(problem, inputs))
    for token in range(8):
        one = [tensor[token : token + 1] for tensor in inputs[:3]]
        assert torch.equal(run(replace(problem, tokens=1), [*one, *inputs[3:]]), together[token : token + 1])
    inputs[0][3] = 0
    assert not run(problem, inputs)[3].any()
