"""Operators over states of 8 bits of the library of CPU kernels against float64, by instruction set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.ops.cases import ssm_case
from tests.ops.oracle import relative_error, ssm_step_loop
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator
from tests.runtime.onnxruntime.state_operators import LENGTHS, updated, updated_8bit
from tests.runtime.onnxruntime.steps import TOLERANCE

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")


@EACH_SET
@pytest.mark.parametrize("by_column", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 2, 64, 128), (2, 3, 5, 7), (1, 4, 1, 131), (0, 2, 3, 4)], ids=str)
def test_states_of_8_bits_are_the_nearest(sizes: tuple[int, ...], by_column: int, instructions: int) -> None:
    """Numbers between two, rows of zeros, and rows with numbers that are not finite among others."""
    axis, random = -2 if by_column else -1, np.random.default_rng(0)
    wide = random.standard_normal(sizes).astype(np.float32)
    rows = np.moveaxis(wide, axis, -1)
    if rows.size:
        rows[-1, 0, 0] = random.integers(-253, 254, rows.shape[-1]) / 2.0
        rows[-1, 0, 0, 0] = 127.0
        rows[0, 1, 0], rows[0, -1, -1, -1], rows[-1, 1, -1, 0] = 0.0, np.nan, -np.inf
    largest = np.abs(wide).max(axis)
    expected = np.where(np.isfinite(largest), largest / np.float32(127), np.nan).astype(np.float32)
    attributes = {"by_column": by_column, "instructions": instructions}
    shapes = {"values": sizes, "scales": expected.shape}
    found = run_operator("RoundState", {"wide": wide}, shapes, threads=2, dtypes={"values": np.int8}, **attributes)
    np.testing.assert_array_equal(found["scales"], expected)
    whole = np.expand_dims(expected, axis)
    with np.errstate(invalid="ignore"):
        nearest = np.rint(np.where(np.isnan(whole), 0, wide) / np.where(whole > 0, whole, np.float32(1)))
    finite = np.broadcast_to(np.isfinite(whole), sizes)
    np.testing.assert_array_equal(found["values"][finite], nearest[finite])
    again = run_operator("WidenState", found, {"wide": sizes}, threads=2, **attributes)["wide"]
    np.testing.assert_array_equal(again, found["values"].astype(np.float32) * whole)


def test_scales_of_other_rows_are_refused() -> None:
    given = {"values": np.zeros((2, 3, 4, 5), np.int8), "scales": np.zeros((2, 3, 5), np.float32)}
    with pytest.raises(Exception, match="state in 8 bits: expected inputs whose sizes agree"):
        run_operator("WidenState", given, {"wide": (2, 3, 4, 5)}, by_column=0, instructions=0)


@EACH_SET
@pytest.mark.parametrize("sizes", [(6, 3, 5, 7), (4, 1, 64, 128), (2, 2, 83, 1)], ids=str)
def test_states_of_8_bits_are_updated_in_place(sizes: tuple[int, ...], instructions: int) -> None:
    """As by UpdateSsmState between reading and rounding; a row without tokens keeps its state bit for bit."""
    heads, groups, head_dim, state_size = sizes
    case = ssm_case(LENGTHS, 5, heads, groups, head_dim, state_size)
    state = np.ascontiguousarray(case.state.swapaxes(2, 3), np.float32)
    shapes, by_column = {"values": state.shape, "scales": state.shape[:2] + state.shape[3:]}, {"by_column": 1}
    int8 = {"values": np.int8}
    before = run_operator("RoundState", {"wide": state}, shapes, dtypes=int8, instructions=instructions, **by_column)
    exact = before["values"].astype(np.float64) * before["scales"][:, :, None]
    plain = updated(replace(case, state=exact.swapaxes(2, 3)), instructions)
    wide = {"wide": np.ascontiguousarray(plain["new_state"].swapaxes(2, 3))}
    expected = run_operator("RoundState", wide, shapes, dtypes=int8, instructions=instructions, **by_column)
    found = updated_8bit(case, before, instructions)
    np.testing.assert_array_equal(found["y"].reshape(plain["y"].shape), plain["y"])
    for name, array in expected.items():
        own = np.where((np.array(LENGTHS) > 0).reshape(-1, *[1] * (array.ndim - 1)), array, before[name])
        np.testing.assert_array_equal(found[name], own)


@EACH_SET
@pytest.mark.parametrize("sizes", [(4, 1, 64, 128), (2, 2, 80, 9), (2, 1, 16, 3), (6, 3, 5, 7)], ids=str)
def test_one_token_over_states_of_8_bits_rounds_the_exact_ones(sizes: tuple[int, ...], instructions: int) -> None:
    """Of whole vectors and of others, with columns of zeros, of tiny numbers, and one that is not finite."""
    heads, groups, head_dim, state_size = sizes
    case = ssm_case((1, 0, 1), 1, heads, groups, head_dim, state_size)
    case.x[:, :, 0, :2] = 0.0
    case.x[2, 0, 1, 3] = np.inf
    random = np.random.default_rng(1)
    values = random.integers(-127, 128, (3, heads, state_size, head_dim), np.int8)
    scales = random.uniform(0.001, 0.1, (3, heads, head_dim)).astype(np.float32)
    scales[:, 0, 0], scales[:, 0, 1] = 0.0, 1e-32
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias")
    given = {name: getattr(case, name).astype(np.float32).astype(np.float64) for name in names}
    state = (values.astype(np.float64) * scales[:, :, None]).swapaxes(2, 3)
    with np.errstate(invalid="ignore"):
        y, last = ssm_step_loop(replace(case, **given, state=state))
    found = updated_8bit(case, {"values": values.copy(), "scales": scales.copy()}, instructions)
    assert np.isnan(found["scales"][2, 1, 3]) and found["scales"][0, 0, 0] == 0.0
    np.testing.assert_array_equal(found["values"][1], values[1])
    np.testing.assert_array_equal(found["scales"][1], scales[1])
    finite = np.isfinite(last).all(-1)
    finite[1] = False
    assert relative_error(found["y"].reshape(y.shape)[:, 0][finite], y[:, 0][finite]) < TOLERANCE
    np.testing.assert_allclose(found["scales"][finite], np.abs(last).max(-1)[finite] / 127, rtol=1e-5)
    units = np.where(found["scales"] > 0, found["scales"], 1.0).astype(np.float64)[..., None]
    off = np.abs(found["values"].swapaxes(2, 3) - last / units)
    assert off[finite].max() <= 0.5 + 1e-3
