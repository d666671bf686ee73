"""The trainer's forms of the gated delta rule against transformers', values and gradients."""

from __future__ import annotations

import pytest
import torch
from demo_training.delta_rule import causal_conv1d_fn, chunk_gated_delta_rule, inverse_of_unit_triangle, parallel_chunks
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as modeling

from tests.support.versions import needs_repeated_heads

THEIRS = modeling.torch_chunk_gated_delta_rule


def inputs(time: int) -> list[Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, time, heads, 16) for heads in (2, 2, 4))
    k[:, 1::3] = k[:, ::3][:, : k[:, 1::3].shape[1]]  # keys that resemble each other
    g, beta = -torch.rand(2, time, 4) * torch.tensor([0.001, 0.1, 1.0, 10.0]), torch.rand(2, time, 4)
    return [tensor.requires_grad_() for tensor in (q, k, v, g, beta)]


@needs_repeated_heads
@pytest.mark.parametrize("time", [1, 64, 150])
def test_the_rule_and_its_gradients(time: int) -> None:
    ours, theirs = inputs(time), inputs(time)
    found, _ = chunk_gated_delta_rule(*ours, use_qk_l2norm_in_kernel=True, initial_state=None)
    expected, _ = THEIRS(*theirs, use_qk_l2norm_in_kernel=True, initial_state=None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    direction = torch.randn(found.shape)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.grad - b.grad).norm()) <= 1e-4 * float(b.grad.norm())  # type: ignore[operator,union-attr]


def test_the_convolution() -> None:
    x, weight = torch.randn(2, 9, 6), torch.randn(6, 4)
    expected = modeling.causal_conv1d_fn(x.transpose(1, 2), weight, None, activation="silu")
    torch.testing.assert_close(causal_conv1d_fn(x.transpose(1, 2), weight, None, activation="silu"), expected)


def test_the_inverse_where_powers_would_cancel() -> None:
    lower = 0.99 * torch.ones(3, 64, 64, dtype=torch.float64).tril(-1)
    found = inverse_of_unit_triangle(lower.float())
    expected = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + lower)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=1e-5)
    assert torch.get_float32_matmul_precision() == "highest"


def test_transformers_gets_its_own_functions_back() -> None:
    with parallel_chunks():
        assert modeling.torch_chunk_gated_delta_rule is chunk_gated_delta_rule
    assert modeling.torch_chunk_gated_delta_rule is THEIRS
