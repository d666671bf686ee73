"""``routed_experts`` of few tokens and the choice before it on the GPU, on fresh outputs full of NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused import routed_experts, top_k_softmax
from hybridge.trt_plugins.kernels.fused.routed_experts import ExpertsDecode
from hybridge.trt_plugins.kernels.fused.top_k_softmax import TopKSoftmax
from hybridge.trt_plugins.reference.routed_experts import routed_experts as reference
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu

TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 3e-3, DType.BFLOAT16: 3e-3}
EXPERTS = 6
BASE = ExpertsDecode(
    3, 2, hidden=264, intermediate=72, dtype=DType.BFLOAT16, activation="silu", gated=True, x_stride=264
)


def tensors(problem: ExpertsDecode, experts: int = EXPERTS) -> list[torch.Tensor]:
    torch.manual_seed(0)
    dtype = getattr(torch, problem.dtype.value)
    rows = problem.intermediate * (2 if problem.gated else 1)
    liking = torch.rand(problem.tokens, experts, device="cuda")
    return [
        torch.randn(problem.tokens, problem.x_stride, device="cuda").to(dtype)[:, : problem.hidden],
        liking.argsort(-1)[:, : problem.top_k].int().contiguous(),
        torch.rand(problem.tokens, problem.top_k, device="cuda"),
        (torch.randn(experts, rows, problem.hidden, device="cuda") * problem.hidden**-0.5).to(dtype),
        (torch.randn(experts, problem.hidden, problem.intermediate, device="cuda") * rows**-0.5).to(dtype),
        *(torch.randn(experts, n, device="cuda").to(dtype) for n in (rows, problem.hidden) if problem.biased),
    ]


def run(problem: ExpertsDecode, inputs: list[torch.Tensor]) -> torch.Tensor:
    y = torch.full((problem.tokens, problem.hidden), float("nan"), dtype=inputs[0].dtype, device="cuda")
    run_plan(routed_experts.plan(problem, KernelDevice.current().traits), inputs, [y])
    return y


def check(problem: ExpertsDecode, inputs: list[torch.Tensor] | None = None) -> None:
    x, ids, *rest = given = inputs or tensors(problem)
    y = run(problem, given)
    wide = [tensor.double() for tensor in rest] + ([] if problem.biased else [None, None])
    form: dict[str, Any] = {n: getattr(problem, n) for n in ("activation", "gated", "alpha", "limit", "offset")}
    expected = reference(x.double(), ids, *wide, **form)
    error = float((y.double() - expected).norm() / expected.norm())
    assert error <= TOLERANCE[problem.dtype], f"relative error {error:.3g}"


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("tokens", [1, 3])
def test_types(dtype, tokens):
    check(replace(BASE, dtype=dtype, tokens=tokens))


@pytest.mark.parametrize("activation", EXPERT_ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_activations(activation, gated):
    check(replace(BASE, activation=activation, gated=gated))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("tokens", [1, 3])
def test_biases_and_a_clamped_gate(dtype, tokens):
    problem = replace(BASE, dtype=dtype, tokens=tokens, biased=True)
    check(replace(problem, alpha=1.702, limit=0.75, offset=1.0))
    check(replace(problem, activation="relu2", gated=False))


@pytest.mark.parametrize(("hidden", "intermediate"), [(8, 8), (2048, 512), (2056, 1032), (520, 2600)])
@pytest.mark.parametrize("tokens", [1, 2])
def test_sizes(hidden, intermediate, tokens):
    check(replace(BASE, hidden=hidden, intermediate=intermediate, tokens=tokens, x_stride=hidden))


@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 6), (5, 3), (32, 2), (33, 3), (64, 2), (128, 1)])
def test_tokens_and_choices(tokens, top_k):
    check(replace(BASE, tokens=tokens, top_k=top_k))


def test_every_token_chose_the_same_experts():
    problem = replace(BASE, tokens=20)
    inputs = tensors(problem)
    inputs[1][:] = torch.tensor([4, 1], device="cuda")
    check(problem, inputs)


def test_rows_of_x_may_lie_apart():
    check(replace(BASE, x_stride=296))


def test_a_token_has_the_same_bits_alone_and_in_a_batch():
    problem = replace(BASE, tokens=9)
    x, ids, weights, up, down = tensors(problem)
    together = run(problem, [x, ids, weights, up, down])
    assert torch.equal(together, run(problem, [x, ids, weights, up, down]))
    for token in range(problem.tokens):
        part = slice(token, token + 1)
        alone = run(replace(problem, tokens=1), [x[part], ids[part], weights[part], up, down])
        assert torch.equal(alone, together[part])


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 8, 2), (5, 3, 3), (7, 33, 4), (300, 64, 8), (2, 512, 10), (3, 1000, 32)]
)
def test_choices(tokens, experts, top_k, normalized):
    torch.manual_seed(0)
    logits = 4 * torch.randn(tokens, experts, device="cuda")
    logits[0, :] = 0.5  # equal: the lowest experts
    weights = torch.full((tokens, top_k), float("nan"), device="cuda")
    ids = torch.full((tokens, top_k), -1, dtype=torch.int32, device="cuda")
    problem = TopKSoftmax(tokens, experts, top_k, normalized)
    run_plan(top_k_softmax.plan(problem, KernelDevice.current().traits), [logits], [weights, ids])
    expected_ids = logits.double().argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    shares = logits.double().softmax(-1).gather(-1, expected_ids)
    expected = shares / shares.sum(-1, keepdim=True) if normalized else shares
    assert torch.equal(ids.long(), expected_ids)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=0.0)
