"""One-token ``gated_delta_rule`` with a state of 8 bits on the GPU against the same in float64 and its rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state
from tests.kernels.test_update_ssm_state_8bit_gpu import as_bytes, half_steps
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

BF16, F32 = torch.bfloat16, torch.float32
NAN = float("nan")
types = pytest.mark.parametrize("dtype", list(LARGEST), ids=str)
# Rows, key and value heads, sizes of keys and values: few and many heads, slices, rows and columns that fill no block.
SHAPES = [(3, 2, 4, 128, 128), (40, 16, 32, 128, 128), (2, 1, 2, 64, 64), (90, 2, 4, 96, 192), (2, 2, 2, 40, 24),
          (70, 2, 4, 40, 72), (2, 1, 1, 256, 256), (2, 1, 3, 8, 8)]  # fmt: skip


def inputs_of(dtype: torch.dtype, shape: tuple[int, ...], channels: bool, data: torch.dtype) -> list[torch.Tensor]:
    """The operator's inputs, with a state of ``dtype`` and its scales."""
    torch.manual_seed(0)
    rows, key_heads, value_heads, key_size, value_size = shape

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda")

    q, k = normal(rows, key_heads, key_size).to(data), normal(rows, key_heads, key_size).to(data)
    v, beta = normal(rows, value_heads, value_size).to(data), torch.rand(rows, value_heads, device="cuda").to(data)
    g = -torch.rand(rows, value_heads, key_size if channels else 1, device="cuda")
    state, scales = quantized_state(3 * normal(rows, value_heads, key_size, value_size), dtype, -2)
    return [q, k, v, g, beta, state, scales, torch.ones(rows, dtype=torch.int32, device="cuda")]


def run(inputs: list[torch.Tensor], channels: bool, in_place: bool = True) -> list[torch.Tensor]:
    """o, the state and its scales."""
    state, scales = as_bytes(inputs[5].clone()), inputs[6].clone()
    o = torch.full(inputs[2].shape, NAN, dtype=inputs[2].dtype, device="cuda")
    outputs = [o, state, scales] if in_place else [o, torch.full_like(state, 99), torch.full_like(scales, NAN)]
    attributes = {"decay": "key_channel" if channels else "head"}
    run_op("gated_delta_rule_8bit", [*inputs[:5], state, scales, inputs[7]], outputs, attributes)
    return [outputs[0], outputs[1].view(inputs[5].dtype), outputs[2]]


def reference(inputs: list[torch.Tensor], channels: bool) -> tuple[torch.Tensor, torch.Tensor]:
    decay = "key_channel" if channels else "head"
    state = exact_state(inputs[5], inputs[6], -2)
    arguments: list[Any] = [*(each.double() for each in inputs[:5]), state, inputs[7], decay, 1, 0.0, 64]
    return gated_delta_rule(*arguments)


@types
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_state_is_the_exact_one_rounded_to_its_column(shape, channels, dtype):
    for data, in_place in ((BF16, True), (F32, False)):
        inputs = inputs_of(dtype, shape, channels, data)
        o, state, scales = run(inputs, channels, in_place)
        expected, exact = reference(inputs, channels)
        assert float((o.double() - expected).norm() / expected.norm()) <= (3e-3 if data is BF16 else 1e-5)
        torch.testing.assert_close(scales.double(), exact.abs().amax(-2) / LARGEST[dtype], rtol=1e-4, atol=0.0)
        off = (exact_state(state, scales, -2) - exact).abs() / scales.double().unsqueeze(-2)
        # In units of a column's scale float32 is off by a thousandth at most.
        assert float((off - half_steps(state) * (1 + 2e-3)).max()) <= 2e-3


@types
@pytest.mark.parametrize("in_place", [False, True])
def test_an_empty_row_keeps_every_bit_of_its_state(in_place, dtype):
    inputs = inputs_of(dtype, (40, 16, 32, 128, 128), False, BF16)
    inputs[7][1] = 0
    o, state, scales = run(inputs, False, in_place)
    assert torch.equal(as_bytes(state)[1], as_bytes(inputs[5])[1]) and torch.equal(scales[1], inputs[6][1])
    assert not o[1].any()


@types
def test_what_is_not_finite_makes_its_column_no_number(dtype):
    inputs = inputs_of(dtype, (2, 1, 2, 64, 64), False, F32)
    inputs[2][0, 1, 5] = torch.inf
    inputs[2][1, 0, 7] = NAN
    assert torch.argwhere(run(inputs, False)[2].isnan()).tolist() == [[0, 1, 5], [1, 0, 7]]
