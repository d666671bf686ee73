"""Integers and scales of groups of weights."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.nibbles import packed_e2m1
from hybridge.exporter.rounding import rounding
from hybridge.exporter.rounding.blocks import peak_of
from hybridge.exporter.rounding.rounding import (
    E2M1,
    E4M3,
    Levels,
    e4m3_divisor,
    e4m3_scales,
    gptq_rounded,
    integer_levels,
    parts_to_try,
    powers_of_two,
    scales_as,
)
from hybridge.exporter.rounding.weight import Peak, RoundedWeight
from hybridge.quantization.packing import packed_words
from tests.quantization.dequantized import integers

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def rounded(given: np.ndarray, bits: int, group: int, scale: np.dtype, search: bool) -> tuple[np.ndarray, np.ndarray]:
    levels = integer_levels(bits)
    return rounding.rounded(given, group, levels, scales_as(scale), parts_to_try(search, levels))


def weights(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_t(4, (rows, columns)) * rng.uniform(0.01, 3, (rows, 1))).astype(np.float32)


def squared_error(given: np.ndarray, found: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    products = found.astype(np.float64) * scales.astype(np.float64).repeat(group, 1)
    return ((products - given) ** 2).reshape(len(given), -1, group).sum(2)


@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (8, 48), (8, 96)])
@pytest.mark.parametrize("scale", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16])
def test_each_weight_is_the_nearest_product(bits: int, group: int, scale: np.dtype) -> None:
    given = weights(5, 96)
    found, scales = rounded(given, bits, group, scale, search=False)
    assert scales.shape == (5, 96 // group) and (scales.astype(scale).astype(np.float32) == scales).all()
    levels = np.arange(-(1 << bits - 1), 1 << bits - 1)
    products = levels * scales.astype(np.float64).repeat(group, 1)[:, :, None]
    nearest = np.abs(products - given[:, :, None]).min(2)
    chosen = np.abs(np.take_along_axis(products, (found.astype(int) + (1 << bits - 1))[:, :, None], 2)[:, :, 0] - given)
    np.testing.assert_allclose(chosen, nearest, rtol=1e-4, atol=1e-7)
    largest = np.abs(given).reshape(5, -1, group).max(2) / (2 ** (bits - 1) - 0.5)
    np.testing.assert_allclose(scales.astype(np.float64), largest, rtol=2**-7)


@pytest.mark.parametrize("bits", [4, 8])
def test_search_lowers_the_error_of_every_group(bits: int) -> None:
    given = weights(7, 64)
    plain = squared_error(given, *rounded(given, bits, 32, BFLOAT16, search=False), 32)
    best = squared_error(given, *rounded(given, bits, 32, BFLOAT16, search=True), 32)
    assert (best <= plain * (1 + 1e-6)).all() and best.sum() < (0.96 if bits == 4 else 0.9) * plain.sum()


def test_a_weight_is_written_with_the_scales_of_least_error(tmp_path: Path) -> None:
    given, path = weights(9, 64), tmp_path / "weights"
    path.write_bytes(given.tobytes())
    slot = TensorSlot("w", DType.FLOAT32, given.shape, path, 0, given.nbytes)
    found = RoundedWeight(slot, "int8", 32, Peak((slot,)), search=True).tensor()
    numbers, scales = (np.concatenate(list(each.pieces())) for each in (found.values, found.scales))
    best = rounded(given, 8, 32, np.dtype(np.float32), search=True)
    np.testing.assert_array_equal(numbers.view(np.int8).reshape(9, 64), best[0])
    np.testing.assert_array_equal(scales.view(np.float32).reshape(9, 2), best[1])


@pytest.mark.parametrize("shift", [-40.0, -1.0, 0.0, 2.0, 1e38])
@pytest.mark.filterwarnings("error")
def test_zero_points(shift: float) -> None:
    """Each weight is nearest to its product among 16 consecutive integers, which a zero point of 4 bits allows."""
    given = np.random.default_rng(0).normal(shift, max(1, abs(shift) / 8), (6, 64)).astype(np.float32)
    arguments = given, 32, integer_levels(4, zero_points=True), scales_as(BFLOAT16)
    plain, best = (rounding.rounded(*arguments, parts_to_try(search, arguments[2])) for search in (False, True))
    errors = []
    for numbers, scales in (plain, best):
        groups = numbers.reshape(6, 2, 32)
        low, high = groups.min(2), groups.max(2)
        assert (high - low <= 15).all() and (low >= -15).all() and (high <= 15).all()
        products = numbers.astype(np.float64) * scales.astype(np.float64).repeat(32, 1)
        errors.append(((products - given) ** 2).reshape(6, 2, 32).sum(2))
    ranges = given.reshape(6, 2, 32).astype(np.float64)
    steps = (np.maximum(ranges.max(2), 0) - np.minimum(ranges.min(2), 0)) / 15
    np.testing.assert_allclose(plain[1].astype(np.float64), steps, rtol=2**-7)
    off = np.abs(plain[0] * plain[1].astype(np.float64).repeat(32, 1) - given).reshape(6, 2, 32).max(2)
    assert (off <= 1.2 * steps).all()  # the scale is rounded, and the middle of the range to a whole number
    assert (errors[1] <= errors[0] * (1 + 1e-6)).all()
    if not shift:
        symmetric = squared_error(given, *rounded(given, 4, 32, BFLOAT16, search=True), 32)
        assert errors[1].sum() < 0.9 * symmetric.sum()


def test_zeros_and_tiny_and_huge_weights() -> None:
    given = np.zeros((4, 32), np.float32)
    given[1, :] = 1e-30
    given[2, 3] = 3e38
    given[3] = np.linspace(-1e-8, 1e-8, 32)
    found, scales = rounded(given, 4, 16, BFLOAT16, search=True)
    assert (scales.astype(np.float32) > 0).all() and np.isfinite(scales.astype(np.float32)).all()
    assert not found[0].any() and scales[0, 0] == 1
    products = found * scales.astype(np.float64).repeat(16, 1)
    assert (np.abs(products - given).max(1)[[1, 3]] < [1e-31, 2e-9]).all()
    _, half = rounded(given[[1, 3]], 4, 16, np.dtype(np.float16), search=True)
    assert (half > 0).all()


def test_float16_scales_of_small_weights_are_as_good_as_float32_ones() -> None:
    given = np.random.default_rng(0).normal(0, 3e-4, (8, 128)).astype(np.float32)
    errors = {}
    for scale in (np.dtype(np.float16), np.dtype(np.float32)):
        found, scales = rounded(given, 8, 128, scale, search=False)
        assert (scales.astype(scale).astype(np.float32) == scales).all()
        errors[scale.name] = squared_error(given, found, scales, 128).sum()
    assert errors["float16"] < 1.2 * errors["float32"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("peak", [0.0, 1e-42, 3e38])
def test_divisor_of_extreme_weights(peak: float) -> None:
    divisor = e4m3_divisor(peak)
    assert divisor > 0 and np.isfinite(divisor)
    assert (e4m3_scales(divisor)(np.array([peak / 6, 1], np.float32)) > 0).all()


@pytest.mark.parametrize(("bits", "columns"), [(4, 48), (4, 13), (8, 48), (8, 5)])
def test_words_have_the_integers_from_low_to_high_bits(bits: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    given = rng.integers(-(1 << bits - 1), 1 << bits - 1, (3, columns)).astype(np.int8)
    given[0, :2] = -(1 << bits - 1), (1 << bits - 1) - 1
    words = packed_words(given, bits)
    assert words.dtype == np.int32 and words.shape == (3, -(-columns * bits // 32))
    np.testing.assert_array_equal(integers(words, bits, columns), given)


@pytest.mark.parametrize(("levels", "dtype"), [(E2M1, ml_dtypes.float4_e2m1fn), (E4M3, ml_dtypes.float8_e4m3fn)])
def test_floating_point_levels(levels: Levels, dtype: type) -> None:
    every = np.arange(1 << ml_dtypes.finfo(dtype).bits, dtype=np.uint8).view(dtype).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    assert levels.peak == every.max()
    given = np.random.default_rng(0).normal(0, levels.peak / 2, 1000).astype(np.float32)
    nearest = np.abs(given[:, None] - every).min(1)
    assert (np.abs(levels.nearest(given) - given) == nearest).all()


def test_e2m1_has_the_first_number_in_the_low_half_of_a_byte() -> None:
    numbers = np.array([[0, 0.5, 1, 1.5, 2, 3, 4, 6], [-0.5, -1, -1.5, -2, -3, -4, -6, 6]], np.float32)
    assert packed_e2m1(numbers).tolist() == [[0x10, 0x32, 0x54, 0x76], [0xA9, 0xCB, 0xED, 0x7F]]


def factor_of(inputs: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the sum of x x^T."""
    return np.linalg.cholesky(np.linalg.inv(inputs.T @ inputs)).T


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("group", [16, 48])
def test_independent_inputs_leave_each_weight_to_itself(group: int, zero_points: bool) -> None:
    given = weights(5, 48)
    levels = integer_levels(4, zero_points)
    arguments = given, group, levels, scales_as(BFLOAT16), parts_to_try(True, levels)
    found = gptq_rounded(*arguments, np.diag(np.linspace(0.5, 2, 48)).astype(np.float32))
    for one, two in zip(found, rounding.rounded(*arguments), strict=True):
        np.testing.assert_array_equal(one, two)


def test_later_columns_make_up_for_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the method is defined: after each column, the change of all later ones of least squared error."""
    monkeypatch.setattr(rounding, "COLUMNS", 5)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 12)) @ rng.normal(size=(12, 12))
    given = weights(4, 12).astype(np.float64)
    levels, scale = integer_levels(4), rounded(given.astype(np.float32), 4, 12, np.dtype(np.float32), False)[1]
    left, expected = given.copy(), np.empty_like(given)
    for column in range(12):
        expected[:, column] = levels.nearest(left[:, column] / scale[:, 0])
        error = expected[:, column] * scale[:, 0] - left[:, column]
        rest = inputs[:, column + 1 :]
        if rest.shape[1]:
            best = np.linalg.lstsq(rest, inputs[:, [column]], rcond=None)[0][:, 0]
            left[:, column + 1 :] -= error[:, None] * best
    arguments = levels, scales_as(np.dtype(np.float32)), ()
    found, scales = gptq_rounded(given.astype(np.float32), 12, *arguments, factor_of(inputs).astype(np.float32))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scales, scale)

    def output_error(numbers: np.ndarray) -> float:
        return float(np.linalg.norm((numbers * scale - given) @ inputs.T))

    assert output_error(found) < 0.8 * output_error(levels.nearest(given / scale))


@pytest.mark.parametrize("largest", [np.finfo(np.float32).max, np.float32(3e38), np.float32(2.0**127), 1.0, 2.0**-126])
@pytest.mark.filterwarnings("error")
def test_products_with_powers_of_two_are_finite(largest: float) -> None:
    given = (np.linspace(-1, 0.7, 64, dtype=np.float32) * np.float32(largest)).reshape(2, 32)
    found, scales = rounding.rounded(given, 32, E2M1, powers_of_two, parts_to_try(True, E2M1))
    assert np.isfinite(found * scales).all() and (np.frexp(scales)[0] == 0.5).all()
    assert scales.max() == np.clip(2.0 ** (np.floor(np.log2(float(largest))) - 2), 2.0**-126, 2.0**125)


@pytest.mark.parametrize("shape", [(0, 16), (3, 0)])
def test_a_matrix_without_weights_has_no_peak(shape: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert peak_of(TensorSlot("w", DType.FLOAT32, shape, tmp_path / "empty", 0, 0)) == 0
