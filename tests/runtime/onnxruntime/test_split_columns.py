"""Operators of the library of CPU kernels that read their columns of a wider tensor, whose others are NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.ops.cases import conv_case, ssm_case
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")

ROWS, TIME, HEADS, GROUPS, HEAD_DIM, STATE_SIZE = 3, 9, 6, 3, 32, 7
_SSM, _CONV = ssm_case((TIME,) * ROWS, TIME, HEADS, GROUPS, HEAD_DIM, STATE_SIZE), conv_case((TIME,) * ROWS, TIME)


def tokens(array: np.ndarray, before: int = 0, after: int = 0) -> np.ndarray:
    """[tokens, columns] with more columns on both sides, or a negative number fewer."""
    flat = np.float32(array).reshape(ROWS * TIME, -1)
    wide = np.pad(flat, ((0, 0), (before, max(after, 0))), constant_values=np.nan)
    return np.ascontiguousarray(wide[:, : wide.shape[1] + min(after, 0)])


def updated(operator: str, instructions: int, before: int, after: int) -> dict[str, np.ndarray]:
    """An update of states; ``before`` and ``after``: columns around those of x. B, C and dt have others."""
    state = np.ascontiguousarray(_SSM.state.swapaxes(2, 3), np.float32)
    projections = [tokens(_SSM.B, 2 * before, 3 * after), tokens(_SSM.C, before, before + 3 * after)]
    given: dict[str, Any] = {"x": tokens(_SSM.x, before, after), "A": np.float32(_SSM.A), "B": projections[0]}
    given |= {"C": projections[1], "D": np.float32(_SSM.D), "dt": tokens(_SSM.dt, max(after, 0), before)}
    given |= {"dt_bias": np.float32(_SSM.dt_bias)}
    is_8bit = operator.endswith("8Bit")
    given |= {"s": np.int8(state), "scales": np.float32(_SSM.state[..., 0])} if is_8bit else {"s": state}
    shapes = {"y": (ROWS * TIME, HEADS * HEAD_DIM), "new_state": state.shape}
    return run_operator(
        operator,
        given,
        shapes | ({"new_scales": given["scales"].shape} if is_8bit else {}),
        {"new_state": "s", "new_scales": "scales"},
        dtypes={"new_state": np.int8} if is_8bit else {},
        heads=HEADS,
        groups=GROUPS,
        dt_softplus=1,
        time_step_min=0.0,
        time_step_max=float("inf"),
        instructions=instructions,
        x_at=before,
        B_at=2 * before,
        C_at=before,
        dt_at=max(after, 0),
    )


def convolved(_: str, instructions: int, before: int, after: int) -> dict[str, np.ndarray]:
    state = np.float32(_CONV.conv_state)
    given = {"x": tokens(_CONV.x, before, after), "weight": np.float32(_CONV.weight), "state": state}
    shapes = {"y": (ROWS * TIME, state.shape[1]), "new_state": state.shape}
    return run_operator(
        "CausalConv1d", given, shapes, {"new_state": "state"}, silu=1, instructions=instructions, x_at=before
    )


def normed(_: str, instructions: int, before: int, after: int) -> dict[str, np.ndarray]:
    x = tokens(_SSM.x)
    given = {"x": x, "gate": tokens(_SSM.x[::-1], before, after), "weight": np.arange(HEAD_DIM, dtype=np.float32)}
    settings = {"size": HEAD_DIM, "norm_first": 0, "epsilon": 1e-5}
    return run_operator("GatedNorm", given, {"y": x.shape}, instructions=instructions, gate_at=before, **settings)


@EACH_SET
@pytest.mark.parametrize(
    ("run", "operator"),
    [(updated, "UpdateSsmState"), (updated, "UpdateSsmState8Bit"), (convolved, "CausalConv1d"), (normed, "GatedNorm")],
)
def test_columns_of_a_wider_tensor_give_the_same(run: Any, operator: str, instructions: int) -> None:
    expected = run(operator, instructions, 0, 0)
    for before, after in ((0, 5), (3, 0), (4, 7)):
        for name, array in run(operator, instructions, before, after).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize(
    ("run", "operator"), [(updated, "UpdateSsmState"), (convolved, "CausalConv1d"), (normed, "GatedNorm")]
)
def test_columns_that_a_tensor_lacks_are_refused(run: Any, operator: str) -> None:
    with pytest.raises(Exception, match=f"{operator}: expected inputs whose sizes agree"):
        run(operator, 0, 3, -2)
