"""The ONNX functions in ONNX Runtime against the float64 step loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import conv_case, poisoned, rounded_case, ssm_case
from tests.ops.node_model import node_model, types_of, wide_feeds
from tests.ops.oracle import ConvCase, SsmCase, conv_step_loop, relative_error, ssm_step_loop
from tests.support.effort import examples

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

LENGTHS = [1, 2, 5, 63, 64, 65, 127, 200, 500]
# By the type of the output: fp32 inside and one rounding, whatever the types of the inputs.
TOLERANCE = {"float32": 1e-5, "float16": 4e-4, "bfloat16": 2.5e-3}


@cache
def session(op: str, types: tuple, attributes: tuple, has_time: bool, sizes: tuple) -> Any:
    """One session for every size: all dims are symbolic but those of the convolution's weight."""
    model = node_model(op, dict(types), dict(sizes), dict(attributes), has_time, wide_interface=True)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(case: ConvCase | SsmCase, types: dict[str, str], has_time: bool = True, **attributes) -> list[np.ndarray]:
    op = "update_ssm_state"
    sizes: tuple[tuple[str, int], ...] = ()
    if isinstance(case, ConvCase):
        op, sizes = "causal_conv1d", (("conv_dim", case.weight.shape[0]), ("kernel", case.weight.shape[2]))
    key = (op, tuple(types.items()), tuple(attributes.items()), has_time, sizes)
    feeds = wide_feeds(case)
    if not has_time:
        feeds.update({n: feeds[n][:, 0] for n in ("x_wide", "B_wide", "C_wide", "dt_wide") if n in feeds})
    return session(*key).run(None, feeds)


def check_ssm(case: SsmCase, types: dict[str, str], **attributes) -> None:
    case = rounded_case(case, types)
    y, state = run(case, types, **attributes)
    attributes.pop("chunk_size", None)
    expected_y, expected_state = ssm_step_loop(case, **attributes)
    assert relative_error(y, expected_y) < TOLERANCE[types["x"]]
    assert relative_error(state, expected_state) < TOLERANCE[types["state"]]


def check_conv(case: ConvCase, types: dict[str, str], activation: str = "silu") -> None:
    case = rounded_case(case, types)
    y, state = run(case, types, activation=activation)
    expected_y, expected_state = conv_step_loop(case, activation)
    assert relative_error(y, expected_y) < TOLERANCE[types["x"]]
    np.testing.assert_array_equal(state, expected_state)


@pytest.mark.parametrize("time", [*LENGTHS, 4096])
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
def test_ssm_at_every_length(time: int, adversarial: bool) -> None:
    lengths = (time,) if time == 4096 else (time, max(time - 3, 0), time // 2, 0)
    case = ssm_case(lengths=lengths, time=time, adversarial=adversarial)
    check_ssm(case, types_of(case, "float32"))


@pytest.mark.parametrize("time", LENGTHS)
def test_conv_at_every_length(time: int) -> None:
    case = conv_case(lengths=(time, max(time - 3, 0), time // 2, 0), time=time)
    check_conv(case, types_of(case, "float32"))


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("time", [1, 65])
def test_ssm_in_16_bit(time: int, data: str) -> None:
    case = ssm_case(lengths=(time, time // 2), time=time)
    check_ssm(case, types_of(case, data))
    check_ssm(case, types_of(case, data, state=data, side=data))


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("time", [1, 65])
def test_conv_in_16_bit(time: int, data: str) -> None:
    case = conv_case(lengths=(time, time // 2), time=time)
    check_conv(case, types_of(case, data))


@pytest.mark.parametrize(
    "attributes",
    [
        {"dt_softplus": 0},
        {"time_step_min": 0.1},
        {"time_step_max": 0.2},
        {"time_step_min": 0.05, "time_step_max": 0.1, "dt_softplus": 0},
        {"time_step_min": -float("inf"), "dt_softplus": 0},
        {"chunk_size": 1},
        {"chunk_size": 7},
        {"chunk_size": 256},
    ],
    ids=str,
)
def test_ssm_attributes(attributes: dict) -> None:
    case = ssm_case(lengths=(70, 33), time=70)
    if attributes.get("time_step_min") == -float("inf"):
        case.dt_bias[:] = 0.0  # negative steps: decays above one, kept small
        case.dt[:] = case.dt * 1e-2
    check_ssm(case, types_of(case, "float32"), **attributes)


@pytest.mark.parametrize(
    "row", [{"kernel": 1}, {"kernel": 2}, {"kernel": 8}, {"bias": False}, {"channels": 1}], ids=str
)
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_conv_rows(row: dict, activation: str) -> None:
    case = conv_case(**{"lengths": (9, 5, 0), "time": 9, **row})
    check_conv(case, types_of(case, "float32"), activation)


@settings(max_examples=examples(20), deadline=None)
@given(
    ratio=st.integers(1, 4),
    groups=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    state_size=st.integers(1, 9),
    lengths=st.lists(st.integers(0, 140), min_size=1, max_size=4),
)
def test_ssm_of_any_size(ratio: int, groups: int, head_dim: int, state_size: int, lengths: list[int]) -> None:
    sizes = {"heads": groups * ratio, "groups": groups, "head_dim": head_dim, "state_size": state_size}
    case = ssm_case(lengths=tuple(lengths), time=max(1, *lengths, 1), **sizes)
    check_ssm(case, types_of(case, "float32"))


@pytest.mark.parametrize("case", [ssm_case((66, 5, 0), 70), conv_case((66, 5, 0), 70)], ids=["ssm", "conv"])
def test_padding_that_is_nan_changes_nothing(case: ConvCase | SsmCase) -> None:
    types = types_of(case, "float32")
    for clean, dirty in zip(run(case, types), run(poisoned(case), types), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    assert not run(poisoned(case), types)[0][2].any()


@pytest.mark.parametrize("case", [ssm_case((1, 0, 1), 1), conv_case((1, 0, 1), 1)], ids=["ssm", "conv"])
def test_decode_form_equals_one_token_prefill(case: ConvCase | SsmCase) -> None:
    types = types_of(case, "float32")
    (y, state), (y_decode, state_decode) = run(case, types), run(case, types, has_time=False)
    np.testing.assert_array_equal(y[:, 0], y_decode)
    np.testing.assert_array_equal(state, state_decode)


def test_row_of_length_zero_keeps_its_state_bit_for_bit() -> None:
    case = ssm_case(lengths=(0, 3), time=3)
    case.state[0, 0, 0, :3] = [-0.0, np.inf, np.nan]
    state = run(case, types_of(case, "float32"))[1][0]
    np.testing.assert_array_equal(state.view(np.int32), case.state[0].astype(np.float32).view(np.int32))


@pytest.mark.parametrize("make", [ssm_case, conv_case])
def test_lengths_outside_the_call_are_clamped(make) -> None:
    inside, outside = make(lengths=(9, 0), time=9), make(lengths=(9, 0), time=9)
    outside.context_lengths[:] = (100, -3)
    types = types_of(inside, "float32")
    for expected, found in zip(run(inside, types), run(outside, types), strict=True):
        np.testing.assert_array_equal(found, expected)
