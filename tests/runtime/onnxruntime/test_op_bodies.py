"""The engine's bodies of the operators against float64 step loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.in_place import updates_in_place
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from tests.ops.cases import conv_case, delta_case, ssm_case
from tests.ops.oracle import conv_step_loop, delta_step_loop, relative_error, ssm_step_loop
from tests.runtime.onnxruntime.op_graphs import KERNELS, NEEDS_LINEAR_ATTENTION, NEWEST, op_model, run_op
from tests.runtime.onnxruntime.steps import TOLERANCE

LENGTHS = [1, 2, 63, 64, 65, 127, 500]
DECAYS = ["head", "key_channel"]
WITH_KERNELS = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)


def check_conv(kernels: Kernels, time: int, one_token: bool = False, activation: str = "silu", **sizes) -> None:
    case = conv_case((time, time), time, **sizes)
    y, state = run_op("causal_conv1d", case, kernels, one_token, activation=activation)
    expected_y, expected_state = conv_step_loop(case, activation)
    assert relative_error(y, expected_y) < TOLERANCE
    assert relative_error(state, expected_state) < TOLERANCE


def check_ssm(kernels: Kernels, time: int, one_token: bool = False, attributes: dict | None = None, **sizes) -> None:
    case = ssm_case((time, time), time, **sizes)
    y, state = run_op("update_ssm_state", case, kernels, one_token, **(attributes or {}))
    expected_y, expected_state = ssm_step_loop(case, **(attributes or {}))
    assert relative_error(y, expected_y) < TOLERANCE
    assert relative_error(state, expected_state) < TOLERANCE


def check_delta(time: int, one_token: bool = False, attributes: dict | None = None, **sizes) -> None:
    case = delta_case((time, time), time, **sizes)
    attributes = {"decay": sizes.get("decay", "head"), **(attributes or {})}
    y, state = run_op("gated_delta_rule", case, NEWEST, one_token, **attributes)
    expected_y, expected_state = delta_step_loop(case, **attributes)
    assert relative_error(y, expected_y) < TOLERANCE
    assert relative_error(state, expected_state) < TOLERANCE


@WITH_KERNELS
@pytest.mark.parametrize("time", LENGTHS)
def test_conv_of_every_length(time: int, kernels: Kernels) -> None:
    check_conv(kernels, time)


@WITH_KERNELS
@pytest.mark.parametrize(
    "row",
    [{"activation": "none"}, {"bias": False}, {"kernel": 2}, {"kernel": 8}, {"channels": 1}, {"channels": 129}],
    ids=str,
)
@pytest.mark.parametrize("one_token", [True, False], ids=["one_token", "many"])
def test_conv_varied_by_one_factor(row: dict, one_token: bool, kernels: Kernels) -> None:
    check_conv(kernels, 1 if one_token else 5, one_token, **row)


@WITH_KERNELS
def test_conv_state_holds_the_inputs_bit_for_bit(kernels: Kernels) -> None:
    case = conv_case((3,), 3)
    _, state = run_op("causal_conv1d", case, kernels)
    stacked = np.concatenate([case.conv_state, case.x.swapaxes(1, 2)], axis=2).astype(np.float32)
    assert np.array_equal(state, stacked[:, :, -4:])


@WITH_KERNELS
@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
def test_ssm_of_every_length(time: int, adversarial: bool, kernels: Kernels) -> None:
    check_ssm(kernels, time, adversarial=adversarial)


@WITH_KERNELS
@pytest.mark.parametrize(
    "row",
    [
        {"groups": 1},
        {"groups": 6},
        {"heads": 1, "groups": 1},
        {"head_dim": 64, "state_size": 128, "heads": 2, "groups": 1},
        {"attributes": {"dt_softplus": 0, "time_step_min": 0.01, "time_step_max": 2.0}},
        {"attributes": {"time_step_min": 0.05}},
        {"attributes": {"time_step_max": 0.1}},
        {"adversarial": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("one_token", [True, False], ids=["one_token", "many"])
def test_ssm_varied_by_one_factor(row: dict, one_token: bool, kernels: Kernels) -> None:
    check_ssm(kernels, 1 if one_token else 70, one_token, **row)


@WITH_KERNELS
@pytest.mark.parametrize("lengths", [(5, 0, 3, 9, 1), (2, 130, 64, 0, 65)], ids=str)
@pytest.mark.parametrize("op", ["causal_conv1d", "update_ssm_state"])
def test_padding_of_shorter_rows_reaches_no_state(op: str, lengths: tuple[int, ...], kernels: Kernels) -> None:
    conv = op == "causal_conv1d"
    case = conv_case(lengths, max(lengths)) if conv else ssm_case(lengths, max(lengths))
    y, state = run_op(op, case, kernels, padded=True)
    expected_y, expected_state = conv_step_loop(case, "none") if conv else ssm_step_loop(case)
    for row, length in enumerate(lengths):
        assert relative_error(state[row], expected_state[row]) < TOLERANCE
        if length:
            assert relative_error(y[row, :length], expected_y[row, :length]) < TOLERANCE
        else:
            np.testing.assert_array_equal(state[row], expected_state[row].astype(np.float32))


@NEEDS_LINEAR_ATTENTION
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
def test_delta_of_every_length(time: int, adversarial: bool, decay: str) -> None:
    check_delta(time, adversarial=adversarial, decay=decay)


@NEEDS_LINEAR_ATTENTION
@pytest.mark.parametrize(
    "row",
    [
        {"key_heads": 1},
        {"key_heads": 6},
        {"key_heads": 1, "value_heads": 1},
        {"key_size": 1, "value_size": 1},
        {"key_size": 33, "value_size": 17},
        {"key_size": 128, "value_size": 64},
        {"attributes": {"scale": 0.7}},
        {"attributes": {"use_qk_l2norm": 0, "scale": 0.3}},
        {"adversarial": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("one_token", [True, False], ids=["one_token", "many"])
def test_delta_varied_by_one_factor(row: dict, one_token: bool, decay: str) -> None:
    # Keys of norm above 1 that are not normalised let the state grow with every token.
    check_delta(1 if one_token else 3 if "attributes" in row else 70, one_token, decay=decay, **row)


@NEEDS_LINEAR_ATTENTION
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("lengths", [(5, 0, 3, 9, 1), (2, 130, 64, 0, 65)], ids=str)
def test_padding_reaches_no_state_of_the_delta_rule(lengths: tuple[int, ...], decay: str) -> None:
    case = delta_case(lengths, max(lengths), decay=decay)
    y, state = run_op("gated_delta_rule", case, NEWEST, padded=True, decay=decay)
    expected_y, expected_state = delta_step_loop(case)
    for row, length in enumerate(lengths):
        assert relative_error(state[row], expected_state[row]) < TOLERANCE
        if length:
            assert relative_error(y[row, :length], expected_y[row, :length]) < TOLERANCE
        else:
            np.testing.assert_array_equal(state[row], expected_state[row].astype(np.float32))


@NEEDS_LINEAR_ATTENTION
@pytest.mark.parametrize("padded", [False, True], ids=["equal", "padded"])
def test_many_tokens_are_one_walk_that_updates_the_state_in_place(padded: bool) -> None:
    model = op_model("update_ssm_state", ssm_case((2,), 2))
    use_op_bodies(model, NEWEST, padded)
    remove_dead_code(model)
    past = next(value for value in model.graph.inputs if value.name == "state")
    present = next(value for value in model.graph.outputs if value.name == "state_out")
    assert updates_in_place(past, present)
    assert [node.op_type for node in model.graph].count("LinearAttention") == 1
    assert "MatMul" not in [node.op_type for node in model.graph]


@NEEDS_LINEAR_ATTENTION
@pytest.mark.parametrize("padded", [False, True], ids=["equal", "padded"])
def test_the_delta_rule_updates_its_state_in_place(padded: bool) -> None:
    model = op_model("gated_delta_rule", delta_case((2,), 2))
    declared = next(value for value in model.graph.inputs if value.name == "state").shape
    use_op_bodies(model, NEWEST, padded)
    past = next(value for value in model.graph.inputs if value.name == "state")
    present = next(value for value in model.graph.outputs if value.name == "state_out")
    assert updates_in_place(past, present)
    assert past.shape == declared


def test_without_linear_attention_the_delta_rule_keeps_its_function() -> None:
    model = op_model("gated_delta_rule", delta_case((2,), 2))
    use_op_bodies(model, KERNELS["standard"], padded=False)
    assert [node.op_type for node in model.graph] == ["gated_delta_rule"]


@WITH_KERNELS
def test_the_error_of_many_tokens_is_that_of_few(kernels: Kernels) -> None:
    case = ssm_case((4096,), 4096, heads=2, groups=1)
    y, state = run_op("update_ssm_state", case, kernels)
    expected_y, expected_state = ssm_step_loop(case)
    assert relative_error(y, expected_y) < TOLERANCE
    assert relative_error(state, expected_state) < TOLERANCE


def test_a_state_that_another_node_reads_keeps_its_layout_and_the_operator_its_function() -> None:
    case = ssm_case((2,), 2)
    model = op_model("update_ssm_state", case)
    state = next(value for value in model.graph.inputs if value.name == "state")
    extra = ir.node("Identity", [state])
    extra.outputs[0].name = "copy"
    model.graph.append(extra)
    model.graph.outputs.append(extra.outputs[0])
    use_op_bodies(model, KERNELS["installed"], padded=False)
    assert [node.op_type for node in model.graph if node.domain] == ["update_ssm_state"]
    assert state.shape == op_model("update_ssm_state", replace(case)).graph.inputs[-2].shape
