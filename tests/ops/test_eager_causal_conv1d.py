"""The eager causal_conv1d against the float64 sliding window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.ops.cases import conv_case, in_dtypes, poisoned, rounded_case
from tests.ops.oracle import conv_step_loop, relative_error
from tests.ops.torch_call import as_float64, run_conv, tensors

# fp32 inside and one rounding of the output: measured 2.1e-4 in fp16 and 1.7e-3 in bf16.
TOLERANCE = {"float64": 1e-13, "float32": 1e-6, "float16": 3e-4, "bfloat16": 2.5e-3}
BASE = {"lengths": (5, 9, 0), "time": 9}
ROWS = [
    {},
    {"lengths": (1,), "time": 1},
    {"kernel": 1},
    {"kernel": 2},
    {"kernel": 8},
    {"bias": False},
    {"channels": 1},
    {"lengths": (2, 3), "time": 3, "kernel": 8},
    {"lengths": (500, 499), "time": 500},
]


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_equals_sliding_window(row: dict, activation: str) -> None:
    case = conv_case(**{**BASE, **row})
    dtypes = in_dtypes(case, "float32")
    case = rounded_case(case, dtypes)
    y, state = run_conv(tensors(case, dtypes), activation)
    expected_y, expected_state = conv_step_loop(case, activation)
    assert relative_error(as_float64(y), expected_y) < TOLERANCE["float32"]
    np.testing.assert_array_equal(as_float64(state), expected_state)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_every_type(dtype: str) -> None:
    case = conv_case(lengths=(500, 300), time=500, kernel=8)
    dtypes = in_dtypes(case, dtype)
    case = rounded_case(case, dtypes)
    y, state = run_conv(tensors(case, dtypes))
    expected_y, expected_state = conv_step_loop(case, "silu")
    assert y.dtype == state.dtype == getattr(torch, dtype)
    assert relative_error(as_float64(y), expected_y) < TOLERANCE[dtype]
    np.testing.assert_array_equal(as_float64(state), expected_state)


def test_padding_that_is_nan_changes_nothing() -> None:
    case = conv_case(**BASE)
    dtypes = in_dtypes(case, "float32")
    clean, dirty = run_conv(tensors(case, dtypes)), run_conv(tensors(poisoned(case), dtypes))
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])
    assert not clean[0][0, 5:].any() and not clean[0][2].any()


def test_decode_form_equals_one_token_prefill() -> None:
    case = conv_case(lengths=(1, 0, 1), time=1)
    inputs = tensors(case, in_dtypes(case, "float32"))
    y, state = run_conv(inputs)
    y_decode, state_decode = run_conv([inputs[0].squeeze(1), *inputs[1:]])
    assert torch.equal(y.squeeze(1), y_decode) and torch.equal(state, state_decode)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_two_calls_equal_one(cut: int) -> None:
    case = conv_case(lengths=(9, 9), time=9)
    x, weight, bias, state, lengths = tensors(case, in_dtypes(case, "float64"))
    whole, last = run_conv([x, weight, bias, state, lengths])
    first, middle = run_conv([x[:, :cut], weight, bias, state, torch.full_like(lengths, cut)])
    second, end = run_conv([x[:, cut:], weight, bias, middle, torch.full_like(lengths, 9 - cut)])
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-14, atol=1e-15)
    assert torch.equal(end, last)


def test_lengths_outside_the_call_are_clamped() -> None:
    case = conv_case(lengths=(9, 0), time=9)
    inputs = tensors(case, in_dtypes(case, "float32"))
    expected = run_conv(inputs)
    found = run_conv([*inputs[:4], torch.tensor([100, -3], dtype=torch.int32)])
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
