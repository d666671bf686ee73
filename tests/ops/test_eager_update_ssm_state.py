"""The eager update_ssm_state against the float64 step loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import in_dtypes, poisoned, rounded_case, ssm_case
from tests.ops.oracle import SsmCase, relative_error, ssm_step_loop
from tests.ops.torch_call import as_float64, run_ssm, tensors
from tests.support.effort import examples

# By the type of the output: fp32 inside and one rounding, whatever the types of the inputs.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-4, "bfloat16": 2.5e-3}


def check(case: SsmCase, dtypes: dict[str, str], **attributes) -> None:
    case = rounded_case(case, dtypes)
    y, state = run_ssm(tensors(case, dtypes), **attributes)
    attributes.pop("chunk_size", None)
    expected_y, expected_state = ssm_step_loop(case, **attributes)
    assert y.dtype == getattr(torch, dtypes["x"]) and state.dtype == getattr(torch, dtypes["state"])
    assert relative_error(as_float64(y), expected_y) < TOLERANCE[dtypes["x"]]
    assert relative_error(as_float64(state), expected_state) < TOLERANCE[dtypes["state"]]


@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("time", [1, 2, 63, 64, 65, 127, 500, 4096])
def test_fp32_error_does_not_grow_with_length(time: int, adversarial: bool) -> None:
    lengths = (time,) if time == 4096 else (time, max(time - 3, 0), 0)
    case = ssm_case(lengths=lengths, time=time, adversarial=adversarial)
    check(case, in_dtypes(case, "float32"))


ROWS = [
    {"groups": 1},
    {"groups": 6},
    {"heads": 1, "groups": 1},
    {"head_dim": 1, "state_size": 1},
    {"lengths": (1,)},
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_odd_sizes(row: dict) -> None:
    case = ssm_case(**{"lengths": (70, 3), "time": 70, **row})
    check(case, in_dtypes(case, "float32"))


@pytest.mark.parametrize("time", [65, 4096])
@pytest.mark.parametrize("data", sorted(TOLERANCE))
def test_every_data_type_with_fp32_state(data: str, time: int) -> None:
    case = ssm_case(lengths=(time,), time=time)
    wide = "float64" if data == "float64" else "float32"
    dtypes = {**in_dtypes(case, data, state=wide, side=wide), "A": wide}
    check(case, dtypes)


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_types_of_side_inputs_and_state_follow_the_data(data: str) -> None:
    case = ssm_case(lengths=(65, 2), time=65)
    check(case, in_dtypes(case, data, state=data, side=data))


@pytest.mark.parametrize(
    "attributes",
    [
        {"dt_softplus": 0},
        {"time_step_min": 0.1},
        {"time_step_max": 0.2},
        {"time_step_min": 0.05, "time_step_max": 0.1, "dt_softplus": 0},
        {"chunk_size": 1},
        {"chunk_size": 7},
        {"chunk_size": 256},
    ],
    ids=str,
)
def test_attributes(attributes: dict) -> None:
    case = ssm_case(lengths=(70, 33), time=70)
    check(case, in_dtypes(case, "float32"), **attributes)


def test_padding_that_is_nan_changes_nothing() -> None:
    case = ssm_case(lengths=(66, 5, 0), time=70)
    dtypes = in_dtypes(case, "float32")
    clean, dirty = run_ssm(tensors(case, dtypes)), run_ssm(tensors(poisoned(case), dtypes))
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])
    assert not clean[0][1, 5:].any() and not clean[0][2].any()


@pytest.mark.parametrize("state", ["float32", "float16"])
def test_row_of_length_zero_keeps_its_state_bit_for_bit(state: str) -> None:
    case = ssm_case(lengths=(0, 3), time=3)
    case.state[0, 0, 0, :3] = [-0.0, np.inf, np.nan]
    inputs = tensors(case, in_dtypes(case, "float16", state=state))
    bits = {"float32": torch.int32, "float16": torch.int16}[state]
    assert torch.equal(run_ssm(inputs)[1][0].view(bits), inputs[7][0].view(bits))


def test_decode_form_equals_one_token_prefill() -> None:
    case = ssm_case(lengths=(1, 0, 1), time=1)
    inputs = tensors(case, in_dtypes(case, "float32"))
    y, state = run_ssm(inputs)
    decode = [t.squeeze(1) if index in (0, 2, 3, 5) else t for index, t in enumerate(inputs)]
    y_decode, state_decode = run_ssm(decode)
    assert torch.equal(y.squeeze(1), y_decode) and torch.equal(state, state_decode)


@settings(max_examples=examples(15), deadline=None)
@given(time=st.integers(2, 90), data=st.data())
def test_two_calls_equal_one(time: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, time - 1))
    case = ssm_case(lengths=(time, time), time=time, seed=time)
    dtypes = dict.fromkeys(in_dtypes(case, "float64"), "float64")
    x, A, B, C, D, dt, dt_bias, state, lengths = tensors(case, dtypes)
    whole, last = run_ssm([x, A, B, C, D, dt, dt_bias, state, lengths])
    done = torch.full_like(lengths, cut)
    first, state = run_ssm([x[:, :cut], A, B[:, :cut], C[:, :cut], D, dt[:, :cut], dt_bias, state, done])
    second, end = run_ssm([x[:, cut:], A, B[:, cut:], C[:, cut:], D, dt[:, cut:], dt_bias, state, lengths - done])
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=1e-10, atol=1e-12)
