"""The ONNX function of gated_delta_rule: in ONNX Runtime against the float64 step loop, and built by TensorRT-RTX."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import delta_case, poisoned, rounded_case
from tests.ops.node_model import node_model, types_of, wide_feeds
from tests.ops.oracle import DeltaCase, delta_step_loop, relative_error
from tests.support.effort import examples

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

TOLERANCE = {"float32": 1e-5, "float16": 4e-4, "bfloat16": 2.5e-3}
DECAYS = ["head", "key_channel"]
TOKEN_WISE = ("q_wide", "k_wide", "v_wide", "g_wide", "beta_wide")


@cache
def session(types: tuple, attributes: tuple, has_time: bool) -> Any:
    """One session for every size: all dims are symbolic."""
    model = node_model("gated_delta_rule", dict(types), {}, dict(attributes), has_time, wide_interface=True)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(case: DeltaCase, types: dict[str, str], has_time: bool = True, **attributes) -> list[np.ndarray]:
    feeds = wide_feeds(case)
    if not has_time:
        feeds.update({name: feeds[name][:, 0] for name in TOKEN_WISE})
    return session(tuple(types.items()), tuple(attributes.items()), has_time).run(None, feeds)


def check(case: DeltaCase, types: dict[str, str], **attributes) -> None:
    case = rounded_case(case, types)
    o, state = run(case, types, **attributes)
    attributes.pop("chunk_size", None)
    expected_o, expected_state = delta_step_loop(case, **attributes)
    assert relative_error(o, expected_o) < TOLERANCE[types["v"]]
    assert relative_error(state, expected_state) < TOLERANCE[types["state"]]


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("time", [1, 2, 5, 63, 64, 65, 127, 500, 4096])
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
def test_every_length(time: int, adversarial: bool, decay: str) -> None:
    lengths = (time,) if time == 4096 else (time, max(time - 3, 0), time // 2, 0)
    case = delta_case(lengths=lengths, time=time, adversarial=adversarial, decay=decay)
    check(case, types_of(case, "float32"), decay=decay)


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("time", [1, 65])
def test_16_bit(time: int, data: str) -> None:
    case = delta_case(lengths=(time, time // 2), time=time)
    check(case, types_of(case, data))
    check(case, types_of(case, data, state=data))


@pytest.mark.parametrize(
    "attributes",
    [{"use_qk_l2norm": 0}, {"scale": 0.7}, {"chunk_size": 1}, {"chunk_size": 7}, {"chunk_size": 256}],
    ids=str,
)
def test_attributes(attributes: dict) -> None:
    case = delta_case(lengths=(70, 33), time=70)
    if attributes.get("use_qk_l2norm") == 0:
        case.k[:] *= 0.3  # keys of norm below 1, as the rule needs them to forget
    check(case, types_of(case, "float32"), **attributes)


@settings(max_examples=examples(20), deadline=None)
@given(
    ratio=st.integers(1, 4),
    key_heads=st.integers(1, 3),
    key_size=st.integers(1, 9),
    value_size=st.integers(1, 9),
    lengths=st.lists(st.integers(0, 140), min_size=1, max_size=4),
    decay=st.sampled_from(DECAYS),
)
def test_any_size(ratio: int, key_heads: int, key_size: int, value_size: int, lengths: list[int], decay: str) -> None:
    sizes = {"key_heads": key_heads, "value_heads": key_heads * ratio, "key_size": key_size, "value_size": value_size}
    case = delta_case(lengths=tuple(lengths), time=max(1, *lengths, 1), decay=decay, **sizes)
    check(case, types_of(case, "float32"), decay=decay)


def test_padding_that_is_nan_changes_nothing() -> None:
    case = delta_case((66, 5, 0), 70)
    types = types_of(case, "float32")
    for clean, dirty in zip(run(case, types), run(poisoned(case), types), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    assert not run(poisoned(case), types)[0][2].any()


def test_decode_form_equals_one_token_prefill() -> None:
    case = delta_case((1, 0, 1), 1)
    types = types_of(case, "float32")
    (o, state), (o_decode, state_decode) = run(case, types), run(case, types, has_time=False)
    np.testing.assert_array_equal(o[:, 0], o_decode)
    np.testing.assert_array_equal(state, state_decode)


def test_row_of_length_zero_keeps_its_state_bit_for_bit() -> None:
    case = delta_case(lengths=(0, 3), time=3)
    case.state[0, 0, 0, :3] = [-0.0, np.inf, np.nan]
    state = run(case, types_of(case, "float32"))[1][0]
    np.testing.assert_array_equal(state.view(np.int32), case.state[0].astype(np.float32).view(np.int32))
