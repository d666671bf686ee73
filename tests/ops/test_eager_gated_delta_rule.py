"""The eager gated_delta_rule against the float64 step loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import UnsupportedError
from tests.ops.cases import delta_case, in_dtypes, poisoned, rounded_case
from tests.ops.oracle import DeltaCase, delta_step_loop, relative_error
from tests.ops.torch_call import as_float64, run_delta, tensors
from tests.support.effort import examples

# By the type of the output: fp32 inside and one rounding, whatever the types of the inputs.
TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-4, "bfloat16": 2.5e-3}
DECAYS = ["head", "key_channel"]


def check(case: DeltaCase, dtypes: dict[str, str], **attributes) -> None:
    case = rounded_case(case, dtypes)
    o, state = run_delta(tensors(case, dtypes), **attributes)
    attributes.pop("chunk_size", None)
    expected_o, expected_state = delta_step_loop(case, **attributes)
    assert o.dtype == getattr(torch, dtypes["v"]) and state.dtype == getattr(torch, dtypes["state"])
    assert relative_error(as_float64(o), expected_o) < TOLERANCE[dtypes["v"]]
    assert relative_error(as_float64(state), expected_state) < TOLERANCE[dtypes["state"]]


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("time", [1, 2, 63, 64, 65, 127, 500, 4096])
def test_fp32_error_does_not_grow_with_length(time: int, adversarial: bool, decay: str) -> None:
    lengths = (time,) if time == 4096 else (time, max(time - 3, 0), 0)
    case = delta_case(lengths=lengths, time=time, adversarial=adversarial, decay=decay)
    check(case, in_dtypes(case, "float32"), decay=decay)


ROWS = [
    {"key_heads": 6},
    {"key_heads": 1, "value_heads": 1},
    {"key_size": 1, "value_size": 1},
    {"lengths": (1,)},
    {"decay": "key_channel", "key_heads": 1},
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_odd_sizes(row: dict) -> None:
    case = delta_case(**{"lengths": (70, 3), "time": 70, **row})
    check(case, in_dtypes(case, "float32"), decay=row.get("decay", "head"))


@pytest.mark.parametrize("time", [65, 4096])
@pytest.mark.parametrize("data", sorted(TOLERANCE))
def test_every_data_type_with_fp32_state(data: str, time: int) -> None:
    case = delta_case(lengths=(time,), time=time)
    wide = "float64" if data == "float64" else "float32"
    check(case, {**in_dtypes(case, data, state=wide), "g": wide})


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_the_state_may_have_the_datas_type(data: str) -> None:
    case = delta_case(lengths=(65, 2), time=65)
    check(case, in_dtypes(case, data, state=data))


@pytest.mark.parametrize(
    "attributes",
    [{"use_qk_l2norm": 0}, {"scale": 0.7}, {"chunk_size": 1}, {"chunk_size": 7}, {"chunk_size": 256}],
    ids=str,
)
def test_attributes(attributes: dict) -> None:
    case = delta_case(lengths=(70, 33), time=70)
    if attributes.get("use_qk_l2norm") == 0:
        case.k[:] *= 0.3  # keys of norm below 1, as the rule needs them to forget
    check(case, in_dtypes(case, "float32"), **attributes)


@pytest.mark.parametrize("decay", DECAYS)
def test_padding_that_is_nan_changes_nothing(decay: str) -> None:
    case = delta_case(lengths=(66, 5, 0), time=70, decay=decay)
    dtypes = in_dtypes(case, "float32")
    clean = run_delta(tensors(case, dtypes), decay=decay)
    dirty = run_delta(tensors(poisoned(case), dtypes), decay=decay)
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])
    assert not clean[0][1, 5:].any() and not clean[0][2].any()


@pytest.mark.parametrize("state", ["float32", "float16"])
def test_row_of_length_zero_keeps_its_state_bit_for_bit(state: str) -> None:
    case = delta_case(lengths=(0, 3), time=3)
    case.state[0, 0, 0, :3] = [-0.0, np.inf, np.nan]
    inputs = tensors(case, in_dtypes(case, "float16", state=state))
    bits = {"float32": torch.int32, "float16": torch.int16}[state]
    assert torch.equal(run_delta(inputs)[1][0].view(bits), inputs[5][0].view(bits))


def test_decode_form_equals_one_token_prefill() -> None:
    case = delta_case(lengths=(1, 0, 1), time=1)
    inputs = tensors(case, in_dtypes(case, "float32"))
    o, state = run_delta(inputs)
    o_decode, state_decode = run_delta([t.squeeze(1) if index < 5 else t for index, t in enumerate(inputs)])
    assert torch.equal(o.squeeze(1), o_decode) and torch.equal(state, state_decode)


@settings(max_examples=examples(15), deadline=None)
@given(time=st.integers(2, 90), decay=st.sampled_from(DECAYS), data=st.data())
def test_two_calls_equal_one(time: int, decay: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, time - 1))
    case = delta_case(lengths=(time, time), time=time, seed=time, decay=decay)
    *tokens, state, lengths = tensors(case, dict.fromkeys(in_dtypes(case, "float64"), "float64"))
    whole, last = run_delta([*tokens, state, lengths], decay=decay)
    done = torch.full_like(lengths, cut)
    first, state = run_delta([*(t[:, :cut] for t in tokens), state, done], decay=decay)
    second, end = run_delta([*(t[:, cut:] for t in tokens), state, lengths - done], decay=decay)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(end, last, rtol=1e-9, atol=1e-11)


def test_decay_and_its_tensor_have_to_agree() -> None:
    case = delta_case(lengths=(3,), time=3, decay="key_channel")
    with pytest.raises(UnsupportedError, match="expected decay_size 1 with decay 'head', found 7"):
        run_delta(tensors(case, in_dtypes(case, "float32")), decay="head")
    case = delta_case(lengths=(3,), time=3)
    with pytest.raises(UnsupportedError, match="expected decay_size 7 with decay 'key_channel', found 1"):
        run_delta(tensors(case, in_dtypes(case, "float32")), decay="key_channel")
