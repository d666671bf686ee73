"""Operators over states of the library of CPU kernels against float64, by instruction set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.ops.cases import conv_case, delta_case, ssm_case
from tests.ops.oracle import SsmCase, conv_step_loop, delta_step_loop, relative_error, ssm_step_loop
from tests.runtime.onnxruntime.own_operator import EACH_SET
from tests.runtime.onnxruntime.state_operators import LENGTHS, convolved, ruled, updated, updated_8bit
from tests.runtime.onnxruntime.steps import TOLERANCE

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")


@EACH_SET
@pytest.mark.parametrize("sizes", [(6, 3, 5, 7), (4, 1, 64, 128), (2, 2, 83, 1), (1, 1, 1, 3)], ids=str)
def test_states_are_updated_in_place(sizes: tuple[int, ...], instructions: int) -> None:
    heads, groups, head_dim, state_size = sizes
    case = ssm_case(LENGTHS, 5, heads, groups, head_dim, state_size)
    found, (y, state) = updated(case, instructions), ssm_step_loop(case)
    assert relative_error(found["y"], y) < TOLERANCE and not found["y"][1].any()
    assert relative_error(found["new_state"], state) < TOLERANCE
    np.testing.assert_array_equal(found["new_state"][1], case.state[1].astype(np.float32))


@EACH_SET
@pytest.mark.parametrize("time", [1, 6, 8, 21])
def test_the_new_state_may_be_left_out(time: int, instructions: int) -> None:
    case = ssm_case((time, 0, time // 2), time, 6, 3, 21, 7)
    found = updated(case, instructions, writes_state=False)
    assert found.keys() == {"y"} and relative_error(found["y"], ssm_step_loop(case)[0]) < TOLERANCE


@EACH_SET
def test_time_steps_of_any_size(instructions: int) -> None:
    case = ssm_case((2, 2), 2)
    dt = np.resize([-200.0, -30.0, 0.0, 20.0, 200.0, 3e38], case.dt.shape)
    found, (y, state) = updated(with_dt(case, dt), instructions, padded=False), ssm_step_loop(with_dt(case, dt))
    assert relative_error(found["new_state"], state) < TOLERANCE and relative_error(found["y"], y) < TOLERANCE


def with_dt(case: SsmCase, dt: np.ndarray) -> SsmCase:
    return SsmCase(**{**vars(case), "dt": dt, "x": case.x * 1e-3})


def test_a_time_step_of_nan_affects_its_head_only() -> None:
    case = ssm_case((2,), 2)
    case.dt[0, 0, 1] = np.nan
    found = updated(case, 0)["new_state"]
    assert np.isnan(found[0, 1]).all() and np.isfinite(np.delete(found[0], 1, 0)).all()


@pytest.mark.parametrize("name", ["x", "B", "C", "dt", "A", "D", "dt_bias", "state", "lengths"])
def test_sizes_that_disagree_are_refused(name: str) -> None:
    case = ssm_case((2, 2), 2)
    wrong = np.zeros((3, 3, 3, 3) if name == "state" else (2, 2, 4) if name in ("x", "B", "C", "dt") else (5,))
    with pytest.raises(Exception, match="UpdateSsmState: expected inputs whose sizes agree"):
        updated(case, 0, **{name: wrong.astype(np.int32 if name == "lengths" else np.float32)})


@EACH_SET
@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize("sizes", [(2, 6, 7, 5), (1, 2, 64, 83), (3, 3, 1, 1), (1, 1, 130, 64)], ids=str)
def test_delta_rules_update_states_in_place(sizes: tuple[int, int, int, int], decay: str, instructions: int) -> None:
    for adversarial in (False, True):
        case = delta_case(LENGTHS, 5, *sizes, decay, adversarial)
        for normed in (0, 1):
            case.k[...] /= 1.0 if normed else sizes[2]
            found = ruled(case, instructions, normed)
            o, state = delta_step_loop(case, normed, 0.5)
            assert relative_error(found["o"], o) < TOLERANCE and not found["o"][1].any()
            assert relative_error(found["new_state"], state) < TOLERANCE
            np.testing.assert_array_equal(found["new_state"][1], case.state[1].astype(np.float32))


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "state", "lengths"])
def test_a_delta_rule_whose_sizes_disagree_is_refused(name: str) -> None:
    case = delta_case((2, 2), 2)
    wrong = np.zeros((3, 6, 7, 5) if name == "state" else (3,) if name == "lengths" else (2, 2, 4), np.int32)
    with pytest.raises(Exception, match="GatedDeltaRule: expected inputs whose sizes agree"):
        ruled(case, 0, **{name: wrong})


@EACH_SET
@pytest.mark.parametrize("sizes", [(7, 4, True), (1, 1, False), (130, 3, True), (64, 16, False)], ids=str)
def test_columns_are_convolved_in_place(sizes: tuple[int, int, bool], instructions: int) -> None:
    channels, taps, bias = sizes
    case = conv_case(LENGTHS, 5, channels, taps, bias)
    for silu in (0, 1):
        found, (y, state) = convolved(case, instructions, silu), conv_step_loop(case, "silu" if silu else "none")
        assert relative_error(found["y"], y) < TOLERANCE and not found["y"][1].any()
        np.testing.assert_array_equal(found["new_state"], state.astype(np.float32))


@pytest.mark.parametrize(
    "changes", [{"weight": np.zeros((7, 1, 3))}, {"bias": np.zeros(6)}, {"state": np.zeros((3, 7, 17))}]
)
def test_a_convolution_whose_sizes_disagree_is_refused(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(Exception, match="CausalConv1d: expected inputs whose sizes agree, and at most 16 taps"):
        convolved(conv_case(LENGTHS, 5), 0, 0, **changes)


@EACH_SET
@pytest.mark.parametrize("time", [1, 8, 21])
def test_states_after_any_tokens_are_returned(time: int, instructions: int) -> None:
    after = np.unique(np.array([1, time // 3 + 1, max(1, time - 1), time], np.int32))
    ssm, delta, conv = ssm_case((time,), time), delta_case((time,), time), conv_case((time,), time)
    for counts in (after, after[:0]):
        found = (
            updated(ssm, instructions, False, counts),
            ruled(delta, instructions, checkpoints=counts),
            convolved(conv, instructions, 0, counts),
        )
        for place, state in enumerate(found):
            for tokens, found_state in zip(
                [*counts.tolist(), time], [*state["checkpoints"], state["new_state"][0]], strict=True
            ):
                oracle = (
                    ssm_step_loop(shortened(ssm, tokens)),
                    delta_step_loop(shortened(delta, tokens), 1, 0.5),
                    conv_step_loop(shortened(conv, tokens), "none"),
                )[place]
                assert relative_error(found_state[None], oracle[1]) < TOLERANCE, (place, tokens)
            y, *_ = state.values()
            assert relative_error(y, oracle[0]) < TOLERANCE


def shortened(case: Any, tokens: int) -> Any:
    """``case`` with only the first tokens of its row."""
    return replace(case, context_lengths=np.array([tokens], np.int32))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("after", [[0], [3, 3], [4, 2], [6]])
def test_lengths_of_checkpoints_that_do_not_ascend_are_refused(after: list[int], rows: int) -> None:
    lengths, counts = (5,) * rows, np.array(after if rows == 1 else [2], np.int32)
    with pytest.raises(Exception, match="UpdateSsmState: expected inputs whose sizes agree"):
        updated(ssm_case(lengths, 5), 0, False, counts)
    with pytest.raises(Exception, match="GatedDeltaRule: expected inputs whose sizes agree"):
        ruled(delta_case(lengths, 5), 0, checkpoints=counts)
    with pytest.raises(Exception, match="CausalConv1d: expected inputs whose sizes agree"):
        convolved(conv_case(lengths, 5), 0, 0, counts)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (5,), (4, 4), LENGTHS, (0, 9, 1)], ids=str)
def test_tokens_need_no_axis_for_rows(lengths: tuple[int, ...]) -> None:
    time, differ = max(lengths), len(set(lengths)) > 1
    valid = np.arange(time) < np.array(lengths)[:, None]
    starts = {"lengths": np.array([0, *np.cumsum(lengths)], np.int32)} if differ else {}
    ssm, delta, conv = ssm_case(lengths, time), delta_case(lengths, time), conv_case(lengths, time)
    state = np.ascontiguousarray(ssm.state.swapaxes(2, 3), np.float32)
    before = {"values": np.int8(state), "scales": np.float32(ssm.state[..., 0])}

    def packed(case: object, *names: str) -> dict[str, np.ndarray]:
        """The tokens that count, and where each row starts if they differ."""
        given = {name: np.float32(getattr(case, name))[valid] for name in names}
        return {name: array.reshape(len(array), -1) for name, array in given.items()} | starts

    pairs = (
        (updated(ssm, 0), updated(ssm, 0, **packed(ssm, "x", "B", "C", "dt"))),
        (updated_8bit(ssm, before, 0), updated_8bit(ssm, before, 0, **packed(ssm, "x", "B", "C", "dt"))),
        (ruled(delta, 0), ruled(delta, 0, **packed(delta, "q", "k", "v", "g", "beta"))),
        (convolved(conv, 0, 1), convolved(conv, 0, 1, **packed(conv, "x"))),
    )
    for expected, found in pairs:
        for name, array in expected.items():
            right = array.reshape(*valid.shape, -1)[valid] if name in ("y", "o") else array
            np.testing.assert_array_equal(found[name].reshape(right.shape), right)
