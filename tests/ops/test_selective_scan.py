"""selective_scan, eager and as ONNX function in ONNX Runtime, against the float64 step loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import in_dtypes, poisoned, rounded_case, scan_case
from tests.ops.node_model import node_model, types_of, wide_feeds
from tests.ops.oracle import ScanCase, relative_error, scan_step_loop
from tests.ops.torch_call import as_float64, run_scan, tensors
from tests.support.effort import examples

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

# By the type of the output: fp32 inside and one rounding, whatever the types of the inputs.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-4, "bfloat16": 2.5e-3}
TOKEN_WISE = ("x", "B", "C", "dt")


def eager(case: ScanCase, types: dict[str, str], has_time: bool = True, **attributes: Any) -> list[np.ndarray]:
    inputs = dict(zip([*types, "context_lengths"], tensors(case, types), strict=True))
    if not has_time:
        inputs |= {name: inputs[name][:, 0] for name in TOKEN_WISE}
    y, state = run_scan(list(inputs.values()), **attributes)
    assert y.dtype == getattr(torch, types["x"]) and state.dtype == getattr(torch, types["state"])
    return [as_float64(y), as_float64(state)]


@cache
def session(types: tuple, attributes: tuple, has_time: bool) -> Any:
    """One session for every size: all dims are symbolic."""
    model = node_model("selective_scan", dict(types), {}, dict(attributes), has_time, wide_interface=True)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), options, providers=["CPUExecutionProvider"])


def function(case: ScanCase, types: dict[str, str], has_time: bool = True, **attributes: Any) -> list[np.ndarray]:
    feeds = wide_feeds(case)
    if not has_time:
        feeds |= {f"{name}_wide": feeds[f"{name}_wide"][:, 0] for name in TOKEN_WISE}
    return session(tuple(types.items()), tuple(attributes.items()), has_time).run(None, feeds)


Run = Callable[..., list[np.ndarray]]
both = pytest.mark.parametrize("run", [eager, function])


def check(run: Run, case: ScanCase, types: dict[str, str], **attributes: Any) -> None:
    case = rounded_case(case, types)
    y, state = run(case, types, **attributes)
    expected_y, expected_state = scan_step_loop(case, **attributes)
    assert relative_error(y, expected_y) < TOLERANCE[types["x"]]
    assert relative_error(state, expected_state) < TOLERANCE[types["state"]]


@both
@pytest.mark.parametrize("time", [1, 2, 63, 64, 65, 127, 500])
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
def test_every_length(run: Run, time: int, adversarial: bool) -> None:
    case = scan_case((time, max(time - 3, 0), time // 2, 0), time, adversarial=adversarial)
    check(run, case, types_of(case, "float32"))


@both
@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_16_bit(run: Run, data: str) -> None:
    case = scan_case((65, 32), 65, groups=2)
    check(run, case, types_of(case, data))
    check(run, case, types_of(case, data, state=data, side=data))


def test_eager_form_is_exact_in_float64() -> None:
    case = scan_case((500, 3), 500, adversarial=True)
    check(eager, case, dict.fromkeys(in_dtypes(case, "float64"), "float64"))


@both
@pytest.mark.parametrize(
    "attributes",
    [
        {"dt_softplus": 0},
        {"time_step_min": 0.1},
        {"time_step_max": 0.2},
        {"time_step_min": 0.05, "time_step_max": 0.1, "dt_softplus": 0},
    ],
    ids=str,
)
def test_attributes(run: Run, attributes: dict) -> None:
    case = scan_case((37, 20), 37)
    if attributes == {"dt_softplus": 0}:
        case.dt[:] = np.abs(case.dt)
        case.dt_bias[:] = np.abs(case.dt_bias)
    check(run, case, types_of(case, "float32"), **attributes)


@both
@pytest.mark.parametrize("decay", [-1e30, -1e4, -1e-30])
def test_extreme_decays_and_time_steps(run: Run, decay: float) -> None:
    """Tokens that forget all, or nothing, beside time steps of 0 and of 1e4."""
    case = scan_case((40,), 40)
    case.A[::2] = decay
    case.dt[:] = np.where(np.random.default_rng(1).random(case.dt.shape) < 0.2, 1e4, -200.0)
    check(run, case, types_of(case, "float32"))


@both
@settings(max_examples=examples(10), deadline=None)
@given(
    ratio=st.integers(1, 5),
    groups=st.integers(1, 3),
    state_size=st.integers(1, 9),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_any_size(run: Run, ratio: int, groups: int, state_size: int, lengths: list[int]) -> None:
    sizes = {"channels": groups * ratio, "groups": groups, "state_size": state_size}
    case = scan_case(tuple(lengths), max(1, *lengths, 1), **sizes)
    check(run, case, types_of(case, "float32"))


@both
def test_padding_that_is_nan_changes_nothing(run: Run) -> None:
    case = scan_case((34, 5, 0), 38)
    types = types_of(case, "float32")
    for clean, dirty in zip(run(case, types), run(poisoned(case), types), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    assert not run(poisoned(case), types)[0][2].any()


@both
def test_decode_form_equals_one_token_prefill(run: Run) -> None:
    case = scan_case((1, 0, 1), 1)
    types = types_of(case, "float32")
    (y, state), (y_decode, state_decode) = run(case, types), run(case, types, has_time=False)
    np.testing.assert_array_equal(y[:, 0], y_decode)
    np.testing.assert_array_equal(state, state_decode)


@both
def test_row_of_length_zero_keeps_its_state_bit_for_bit(run: Run) -> None:
    case = scan_case((0, 3), 3)
    case.state[0, 0, 0, :3] = [-0.0, np.inf, np.nan]
    state = run(case, types_of(case, "float32"))[1][0].astype(np.float32)
    np.testing.assert_array_equal(state.view(np.int32), case.state[0].astype(np.float32).view(np.int32))


@both
def test_lengths_outside_the_call_are_clamped(run: Run) -> None:
    inside, outside = scan_case((9, 0), 9), scan_case((9, 0), 9)
    outside.context_lengths[:] = (100, -3)
    types = types_of(inside, "float32")
    for expected, found in zip(run(inside, types), run(outside, types), strict=True):
        np.testing.assert_array_equal(found, expected)
