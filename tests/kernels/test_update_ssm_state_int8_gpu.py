"""One-token ``update_ssm_state`` with an int8 state on the GPU against the same update in float64 and its rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.kernel_calls import op_call, run_plan
from trt_plugins.kernels.device import KernelDevice
from trt_plugins.kernels.ops.update_ssm_state_int8 import plan_int8
from trt_plugins.reference.update_ssm_state import update_ssm_state

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
NAN = float("nan")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def quantized(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 and the factor of each row."""
    scale = state.abs().amax(-1) / 127
    return (state / scale.unsqueeze(-1)).round().to(torch.int8), scale.float()


def inputs_of(rows: int, heads: int, head_dim: int, groups: int, state_size: int) -> list[torch.Tensor]:
    """The operator's inputs with an int8 state, then its scales."""
    torch.manual_seed(0)
    x, dt = normal(rows, heads, head_dim).to(BF16), normal(rows, heads).to(BF16)
    B, C = (normal(rows, groups, state_size).to(BF16) for _ in range(2))
    A = -8 * torch.rand(heads, device="cuda")
    state, scale = quantized(normal(rows, heads, head_dim, state_size) * 3)
    lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
    return [x, A, B, C, normal(heads), dt, normal(heads), state, lengths, scale]


def run(inputs: list[torch.Tensor], in_place: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *given, scale = inputs
    state, scale = given[7].clone(), scale.clone()
    y = torch.full(given[0].shape, NAN, dtype=BF16, device="cuda")
    outputs = [y, state, scale] if in_place else [y, torch.full_like(state, 99), torch.full_like(scale, NAN)]
    arguments = [*given[:7], state, given[8]]
    chosen = plan_int8(op_call("update_ssm_state", arguments, outputs[:2], {}), KernelDevice.current().traits)
    run_plan(chosen, [*arguments, scale], outputs)
    return outputs[0], outputs[1], outputs[2]


def reference(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return exact_update(inputs, inputs[7].double() * inputs[9].double().unsqueeze(-1))


def exact_update(inputs: list[torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """y and the new state in float64, from a float64 state."""
    arguments: list[Any] = [*(tensor.double() for tensor in inputs[:7]), state, inputs[8], 1, 0.0, math.inf, 1]
    return update_ssm_state(*arguments)


SHAPES = [(3, 6, 64, 2, 128), (1, 48, 64, 1, 128), (5, 128, 64, 8, 128), (2, 4, 80, 1, 96), (2, 2, 24, 1, 8),
          (3, 2, 256, 2, 256), (3, 2, 72, 2, 40)]  # fmt: skip


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_state_is_the_exact_one_rounded_to_its_row(shape, in_place):
    inputs = inputs_of(*shape)
    y, state, scale = run(inputs, in_place)
    expected_y, exact = reference(inputs)
    assert float((y.double() - expected_y).norm() / expected_y.norm()) <= 3e-3
    # The offset of the bytes is taken off with an error of 1/500 of a step.
    torch.testing.assert_close(scale.double(), exact.abs().amax(-1) / 127, rtol=1e-4, atol=0.0)
    off = (state.double() * scale.double().unsqueeze(-1) - exact).abs()
    assert bool((off <= 0.51 * scale.double().unsqueeze(-1)).all())
    assert bool((state.abs().amax(-1) == 127).all())


def test_a_row_of_zeros_stays_zero():
    inputs = inputs_of(2, 4, 64, 1, 128)
    inputs[7][0] = 0
    inputs[9][0] = 0.0
    inputs[0][0] = 0.0
    y, state, scale = run(inputs)
    assert not state[0].any() and not y[0].any()
    assert bool(torch.isfinite(scale).all())


@pytest.mark.parametrize("in_place", [False, True])
def test_an_empty_row_keeps_every_bit_of_its_state(in_place):
    inputs = inputs_of(3, 6, 64, 2, 128)
    inputs[8][1] = 0
    y, state, scale = run(inputs, in_place)
    assert torch.equal(state[1], inputs[7][1]) and torch.equal(scale[1], inputs[9][1])
    assert not y[1].any()


def test_rounding_errors_do_not_add_up():
    inputs = inputs_of(2, 4, 64, 1, 128)
    inputs[1] = -0.3 * torch.rand(4, device="cuda")
    exact = inputs[7].double() * inputs[9].double().unsqueeze(-1)
    for _ in range(200):
        inputs[0], inputs[5] = normal(2, 4, 64).to(BF16), normal(2, 4).to(BF16)
        inputs[2] = normal(2, 1, 128).to(BF16)
        _, exact = exact_update(inputs, exact)
        _, inputs[7], inputs[9] = run(inputs)
    found = inputs[7].double() * inputs[9].double().unsqueeze(-1)
    assert float((found - exact).norm() / exact.norm()) <= 0.05
