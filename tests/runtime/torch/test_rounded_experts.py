"""Experts over tiles that round their inputs, against float32 products of the same rounded numbers."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.ops.rounded_experts import ExpertRounding
from hybridge.runtime.engines.torch.ops.tiled_experts import ExpertSizes, TiledExperts
from hybridge.trt_plugins.kernels.fused.routed_experts import LARGEST_ROUTES
from hybridge.trt_plugins.kernels.fused.weight_tiles import WeightFormat
from hybridge.trt_plugins.reference.activations import ACTIVATIONS
from hybridge.trt_plugins.reference.rounded_experts import rounded
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation
from tests.runtime.torch.planned_kernels import PlannedKernels
from tests.support.weights import random_weight

FORMS = {
    ("int8", 0): WeightFormat("int8", DType.BFLOAT16),
    ("int8", -1): WeightFormat("int8", DType.BFLOAT16),
    ("fp8", 32): WeightFormat("e4m3", DType.BFLOAT16),
    ("nvfp4", 16): WeightFormat("e2m1", DType.BFLOAT16, 16, byte_scales=True),
}
EXPERTS, HIDDEN, INTERMEDIATE = 5, 64, 96


def check(form: tuple[str, int], tokens: int, kernels: KernelRunner, device: str, tolerance: float) -> None:
    torch.manual_seed(tokens)
    weight, (kind, group) = FORMS[form], form
    up = random_weight(weight, EXPERTS * 2 * INTERMEDIATE, HIDDEN, device=device)
    down = random_weight(weight, EXPERTS * HIDDEN, INTERMEDIATE, device=device)
    x = torch.randn(tokens, HIDDEN, device=device).bfloat16()
    ids = torch.rand(tokens, EXPERTS, device=device).argsort(-1)[:, :3].int()
    weights = torch.rand(tokens, 3, device=device)
    # Scales that round coarsely, so that another expert's scale or none is far off.
    scales = [torch.linspace(low, 4 * low, EXPERTS, device=device) for low in (0.01, 0.02)]
    sizes = ExpertSizes(EXPERTS, HIDDEN, INTERMEDIATE, weight, weight)
    experts = TiledExperts(sizes, ExpertActivation("silu", True), kernels, ExpertRounding(kind, group))
    found = experts(x, ids, weights, *up.tiles(), *down.tiles(), *scales)

    unpacked = 3 * tokens > LARGEST_ROUTES
    # Kernels multiply with exact weights on a GPU; unpacked ones, and those of the planned kernels, are rounded.
    wide = torch.bfloat16 if unpacked or device == "cpu" else torch.float32
    matrices = [w.matrix.to(wide).float().view(EXPERTS, -1, w.matrix.shape[1]) for w in (up, down)]
    expected = torch.zeros(tokens, HIDDEN, device=device)
    for token in range(tokens):
        for place, expert in enumerate(ids[token].tolist()):
            row = rounded(x[token : token + 1].float(), scales[0][expert], kind, group)[0]
            both = matrices[0][expert] @ row.bfloat16().float()
            gate, rest = (both.bfloat16().float() if unpacked else both).chunk(2)
            inner = (ACTIVATIONS["silu"](gate) * rest).bfloat16().float()
            inner = rounded(inner[None], scales[1][expert], kind, group)[0].bfloat16().float()
            expected[token] += weights[token, place] * (matrices[1][expert] @ inner)
    error = float((found.float() - expected).norm() / expected.norm())
    assert error <= tolerance, error


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [2, 50])
def test_planned(form: tuple[str, int], tokens: int) -> None:
    """6 routes, for which each product is a launch of its own, and 150, for which the weights are unpacked."""
    kernels = PlannedKernels()
    check(form, tokens, kernels, "cpu", 5e-3)
    assert kernels.calls == ({"tiled_experts": 2} if tokens == 2 else {"unpack_tiles": 2})


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 2, 42, 50])
def test_on_a_gpu(form: tuple[str, int], tokens: int) -> None:
    check(form, tokens, KernelRunner(), "cuda", 2e-2)
