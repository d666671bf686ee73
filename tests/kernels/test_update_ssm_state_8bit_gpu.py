"""One-token ``update_ssm_state`` with a state of 8 bits on the GPU against the same in float64 and its rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
NAN = float("nan")
# After 200 tokens; e4m3 has a sixteenth of the value where int8 has 1/254 of the row's largest.
MOST_DRIFT = {torch.int8: 0.05, torch.float8_e4m3fn: 0.15}
types = pytest.mark.parametrize("dtype", list(LARGEST), ids=str)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def inputs_of(
    dtype: torch.dtype, rows: int, heads: int, head_dim: int, groups: int, state_size: int
) -> list[torch.Tensor]:
    """The operator's inputs with a state of ``dtype``, then its scales."""
    torch.manual_seed(0)
    x, dt = normal(rows, heads, head_dim).to(BF16), normal(rows, heads).to(BF16)
    B, C = (normal(rows, groups, state_size).to(BF16) for _ in range(2))
    A = -8 * torch.rand(heads, device="cuda")
    state, scale = quantized_state(normal(rows, heads, head_dim, state_size) * 3, dtype)
    lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
    return [x, A, B, C, normal(heads), dt, normal(heads), state, lengths, scale]


def run(inputs: list[torch.Tensor], in_place: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *given, scale = inputs
    dtype = given[7].dtype
    state, scale = as_bytes(given[7].clone()), scale.clone()
    y = torch.full(given[0].shape, NAN, dtype=BF16, device="cuda")
    outputs = [y, state, scale] if in_place else [y, torch.full_like(state, 99), torch.full_like(scale, NAN)]
    run_op("update_ssm_state_8bit", [*given[:7], state, scale, given[8]], outputs, {})
    return outputs[0], outputs[1].view(dtype), outputs[2]


def as_bytes(state: torch.Tensor) -> torch.Tensor:
    """int8, or the bytes of e4m3."""
    return state if state.dtype is torch.int8 else state.view(torch.uint8)


def half_steps(state: torch.Tensor) -> torch.Tensor:
    """Half the distance between neighbours of each number of ``state``, on the side away from 0."""
    if state.dtype is torch.int8:
        return torch.full(state.shape, 0.5, dtype=torch.float64, device=state.device)
    # Not by log2, which a GPU computes a little too low for some powers of two.
    _, exponent = torch.frexp(state.double().abs().clamp_min(2.0**-6))
    return torch.ldexp(torch.ones_like(state, dtype=torch.float64), exponent - 5)


def arithmetic_error(inputs: list[torch.Tensor], scale: torch.Tensor) -> torch.Tensor:
    """Bound of what float32 does to the new state before it is rounded, in units of the new ``scale``.

    The step is off by less than 2^-21 of itself (a sum, ex2.approx, log1p), exp(A * step) by |A * step| times that and
    an ulp, and three operations round: 2^-20 of each term of the sum covers it, however small the sum is. An int8
    becomes 32896 plus itself; taking that off rounds twice, to 2^-24 of it.
    """
    x, A, B, _, _, dt, bias, _, _, old = (tensor.double() for tensor in inputs)
    step = torch.nn.functional.softplus(dt + bias)
    exponent = A * step
    decay = exponent.exp()[..., None, None]
    kept = decay * (1 + exponent.abs()[..., None, None]) * exact_state(inputs[7], inputs[9]).abs()
    per_head = B.repeat_interleave(x.shape[1] // B.shape[1], 1)
    written = (step[..., None] * x).abs()[..., None] * per_head.abs()[:, :, None, :]
    error = 2.0**-20 * (kept + written)
    if inputs[7].dtype is torch.int8:
        error = error + 2 * 2.0**-24 * 32896 * decay * old.unsqueeze(-1)
    return error / scale.double().unsqueeze(-1)


def reference(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return exact_update(inputs, exact_state(inputs[7], inputs[9]))


def exact_update(inputs: list[torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """y and the new state in float64, from a float64 state."""
    arguments: list[Any] = [*(tensor.double() for tensor in inputs[:7]), state, inputs[8], 1, 0.0, math.inf, 1]
    return update_ssm_state(*arguments)


SHAPES = [(3, 6, 64, 2, 128), (1, 48, 64, 1, 128), (5, 128, 64, 8, 128), (2, 4, 80, 1, 96), (2, 2, 24, 1, 8),
          (3, 2, 256, 2, 256), (3, 2, 72, 2, 40)]  # fmt: skip


@types
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_state_is_the_exact_one_rounded_to_its_row(shape, in_place, dtype):
    inputs = inputs_of(dtype, *shape)
    y, state, scale = run(inputs, in_place)
    expected_y, exact = reference(inputs)
    assert float((y.double() - expected_y).norm() / expected_y.norm()) <= 3e-3
    torch.testing.assert_close(scale.double(), exact.abs().amax(-1) / LARGEST[dtype], rtol=1e-4, atol=0.0)
    off = (exact_state(state, scale) - exact).abs() / scale.double().unsqueeze(-1)
    assert float((off - half_steps(state) - arithmetic_error(inputs, scale)).max()) <= 0.0
    assert bool((state.float().abs().amax(-1) == LARGEST[dtype]).all())


@types
def test_a_row_of_zeros_stays_zero(dtype):
    inputs = inputs_of(dtype, 2, 4, 64, 1, 128)
    inputs[7][0] = 0
    inputs[9][0] = 0.0
    inputs[0][0] = 0.0
    y, state, scale = run(inputs)
    assert not state[0].float().any() and not y[0].any()
    assert bool(torch.isfinite(scale).all())


@types
@pytest.mark.parametrize("in_place", [False, True])
def test_an_empty_row_keeps_every_bit_of_its_state(in_place, dtype):
    inputs = inputs_of(dtype, 3, 6, 64, 2, 128)
    inputs[8][1] = 0
    y, state, scale = run(inputs, in_place)
    assert torch.equal(as_bytes(state)[1], as_bytes(inputs[7])[1]) and torch.equal(scale[1], inputs[9][1])
    assert not y[1].any()


def test_every_e4m3_is_read_exactly():
    """A step of 0 and no decay: the state stays the same, subnormal numbers too."""
    inputs = inputs_of(torch.float8_e4m3fn, 1, 1, 8, 1, 256)
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    codes[codes % 128 == 127] = 0x7E
    inputs[7] = codes.expand(1, 1, 8, 256).clone().view(torch.float8_e4m3fn)
    inputs[1], inputs[5], inputs[6] = torch.zeros_like(inputs[1]), inputs[5] * 0 - 100, inputs[6] * 0
    inputs[9] = torch.full_like(inputs[9], 0.5)
    _, state, scale = run(inputs)
    assert torch.equal(exact_state(state, scale), exact_state(inputs[7], inputs[9]))


@types
def test_rounding_errors_do_not_add_up(dtype):
    inputs = inputs_of(dtype, 2, 4, 64, 1, 128)
    inputs[1] = -0.3 * torch.rand(4, device="cuda")
    exact = exact_state(inputs[7], inputs[9])
    for _ in range(200):
        inputs[0], inputs[5] = normal(2, 4, 64).to(BF16), normal(2, 4).to(BF16)
        inputs[2] = normal(2, 1, 128).to(BF16)
        _, exact = exact_update(inputs, exact)
        _, inputs[7], inputs[9] = run(inputs)
    found = exact_state(inputs[7], inputs[9])
    assert float((found - exact).norm() / exact.norm()) <= MOST_DRIFT[dtype]
