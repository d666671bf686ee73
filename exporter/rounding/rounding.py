"""Round float32 weights to the numbers of a narrow type, with a scale for each group of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

# Scales to try, as fractions of the scale at which the largest weight of a group just fits. Integers of 8 bits never
# gain by clipping: with other scales near that one, more large weights come close to an integer.
_PARTS = tuple(float(part) for part in np.linspace(0.55, 1.05, 21))
_FINE_PARTS = tuple(float(part) for part in np.linspace(0.98, 1.07, 19))
_FINE_BITS = 8
# Columns whose errors are propagated together, where each row has one scale.
COLUMNS = 128
# float32 scales -> the nearest ones above 0 that can be stored, as float32.
Storable = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Levels:
    """The numbers of a type: integers from ``low`` to ``high``, or those with ``digits`` binary digits behind the first
    one, whose exponent is at least ``least``. ``peak`` is what a group's largest becomes; where groups have zero points
    (``shifted``), the width of its range, and a group's integers begin at one from -``high`` to 0.
    """

    peak: float
    low: float
    high: float
    digits: int | None = None
    least: int = 0
    shifted: bool = False

    def nearest(self, numbers: np.ndarray, first: np.ndarray | float = 0.0) -> np.ndarray:
        """float32 numbers rounded to the levels; about ten times as fast as a cast of ml_dtypes.

        first: where the integers of each group begin, if they are shifted.
        """
        if self.digits is None:
            return np.clip(np.rint(numbers), self.low + first, self.high + first)
        exponents = np.frexp(numbers)[1] - 1  # of the leading digit
        steps = np.ldexp(np.float32(1), np.maximum(exponents, self.least) - self.digits)
        found = np.rint(numbers / steps)
        found *= steps
        return np.clip(found, self.low, self.high, out=found)


def integer_levels(bits: int, zero_points: bool = False) -> Levels:
    """Signed integers. The peak of few bits is between the largest of both signs, so that each is off by at most half a
    step; of 8 bits it is the smaller one, so that clipping makes no weight smaller.

    zero_points: differences of integers and the zero point of their group.
    """
    if zero_points:
        most = (1 << bits) - 1
        return Levels(most, 0, most, shifted=True)
    half = 1 << (bits - 1)
    return Levels(half - (1 if bits >= _FINE_BITS else 0.5), -half, half - 1)


def _float_levels(dtype: type) -> Levels:
    """Numbers of a floating-point type."""
    info = ml_dtypes.finfo(dtype)
    peak = float(info.max)
    return Levels(peak, -peak, peak, int(info.nmant), int(info.minexp))


E4M3 = _float_levels(ml_dtypes.float8_e4m3fn)
E2M1 = _float_levels(ml_dtypes.float4_e2m1fn)


def powers_of_two(scales: np.ndarray) -> np.ndarray:
    """2^(floor(log2 of a group's largest weight) - 2), as OCP Microscaling specifies; 2 is e2m1's largest exponent.

    The largest scale is 2^125, so that every product is finite.
    """
    exponents = np.frexp(scales.astype(np.float64) * E2M1.peak)[1] - 3  # frexp's fractions begin at 1/2
    return np.ldexp(np.float32(1), np.clip(exponents, -126, 125))


def e4m3_divisor(peak: float) -> np.float32:
    """The divisor of e4m3 scales of e2m1 numbers: the group of the largest weight ``peak`` gets the largest scale."""
    largest = float(np.finfo(np.float32).max) / 4
    return np.float32(min(E4M3.peak * E2M1.peak / peak, largest) if peak else 1)


def e4m3_scales(divisor: np.float32) -> Storable:
    """Rounds scales to e4m3 numbers divided by ``divisor``."""
    least = np.float32(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).smallest_subnormal)
    return lambda scales: E4M3.nearest(np.maximum(scales * divisor, least)) / divisor


def scales_as(dtype: np.dtype) -> Storable:
    """Rounds scales to a floating-point type.

    Those of float16 go on into its subnormal numbers while they have 7 bits: 8-bit groups of weights below 0.0078 need
    them. Subnormal numbers of the other types would be 0 where arithmetic flushes them.
    """
    least = np.float32(ml_dtypes.finfo(dtype).smallest_normal)
    if dtype == np.float16:
        least /= 16
    return lambda scales: np.maximum(scales, least).astype(dtype).astype(np.float32)


def rounded(
    weights: np.ndarray, group: int, levels: Levels, storable: Storable, parts: Sequence[float] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers [rows, columns] of ``levels`` and scales [rows, columns / group], both float32, whose products are close
    to ``weights`` [rows, columns], which must be finite.

    parts: fractions of each group's scale to try too; the one with the least squared error is used.
    A group of zeros gets the scale 1, or the nearest one that can be stored.
    """
    groups = weights.reshape(len(weights), -1, group)
    found, scales, _ = _rounded(groups, levels, storable, parts)
    return found.reshape(weights.shape), scales[:, :, 0]


def _rounded(
    groups: np.ndarray, levels: Levels, storable: Storable, parts: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
    """Numbers of ``groups`` [rows, groups, group]; scales, and where shifted integers begin, [rows, groups, 1]."""
    largest, middle = _largest(groups, levels), _middle(groups, levels)
    scales = storable(largest)
    first = _first(middle, scales, levels)
    found = levels.nearest(groups / scales, first)
    best = _error(groups, found, scales) if parts else None
    for part in parts:
        assert best is not None
        tried = storable(largest * np.float32(part))
        begin = _first(middle, tried, levels)
        numbers = levels.nearest(groups / tried, begin)
        error = _error(groups, numbers, tried)
        better = error < best
        np.copyto(best, error, where=better)
        np.copyto(scales, tried, where=better)
        np.copyto(found, numbers, where=better)
        if isinstance(first, np.ndarray):
            np.copyto(first, begin, where=better)
    return found, scales, first


def scales_of(weights: np.ndarray, group: int, levels: Levels, storable: Storable) -> np.ndarray:
    """The scales that ``rounded`` gives without a search."""
    return storable(_largest(weights.reshape(len(weights), -1, group), levels))[:, :, 0]


def _largest(groups: np.ndarray, levels: Levels) -> np.ndarray:
    """Scales [rows, groups, 1] that let the largest weight of each group fit; the range of it and 0, if shifted."""
    high, low = groups.max(2, keepdims=True), groups.min(2, keepdims=True)
    if levels.shifted:
        # Divided first: the difference of huge weights would be infinite.
        peak = np.float32(levels.peak)
        largest = np.maximum(high, 0) / peak - np.minimum(low, 0) / peak
    else:
        largest = np.maximum(high, -low)
        largest /= np.float32(levels.peak)
    largest[largest == 0] = 1
    return largest


def _middle(groups: np.ndarray, levels: Levels) -> np.ndarray | None:
    """The middle of each group's range [rows, groups, 1]; None where integers are not shifted."""
    if not levels.shifted:
        return None
    return np.maximum(groups.max(2, keepdims=True), 0) / 2 + np.minimum(groups.min(2, keepdims=True), 0) / 2


def _first(middle: np.ndarray | None, scales: np.ndarray, levels: Levels) -> np.ndarray | float:
    """Where integers begin so that the middles of ranges are theirs too."""
    if middle is None:
        return 0.0
    return np.clip(np.rint(middle / scales - np.float32(levels.peak / 2)), -levels.high, 0).astype(np.float32)


def parts_to_try(search: bool, levels: Levels) -> Sequence[float]:
    """The fractions of a scale to try; none without a search."""
    if not search:
        return ()
    return _FINE_PARTS if levels.digits is None and levels.high - levels.low >= (1 << _FINE_BITS) - 1 else _PARTS


def _error(groups: np.ndarray, numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Squared error of each group [rows, groups, 1]."""
    with np.errstate(over="ignore"):  # a scale whose products are infinite has an infinite error
        difference = numbers * scales
    difference -= groups
    return np.einsum("rgc,rgc->rg", difference, difference)[:, :, None]


def gptq_rounded(
    weights: np.ndarray, group: int, levels: Levels, storable: Storable, parts: Sequence[float], factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As ``rounded``, but column by column, each compensating for the errors of the earlier ones (GPTQ,
    arXiv 2210.17323).

    factor: the upper Cholesky factor [columns, columns] of the inverse of the sum of x xᵀ over inputs x. The scales of
    a group are computed after its weights were corrected for earlier errors; the scale of a whole row is not.
    """
    left, columns = weights.copy(), weights.shape[1]
    numbers, scales = np.empty_like(weights), np.empty((len(weights), columns // group), np.float32)
    step = group if group < columns else min(columns, COLUMNS)
    first: np.ndarray | float = 0.0
    if group == columns:
        scales, first = _of_group(weights, levels, storable, parts)
    for start in range(0, columns, step):
        stop = min(start + step, columns)
        block = left[:, start:stop]
        if group < columns:
            found, first = _of_group(np.ascontiguousarray(block), levels, storable, parts)
            scales[:, start // group] = found[:, 0]
        scale = scales[:, start // group]
        errors = np.empty_like(block)
        for column in range(stop - start):
            row = factor[start + column, start:stop]
            numbers[:, start + column] = levels.nearest(block[:, column] / scale, first)
            errors[:, column] = (block[:, column] - numbers[:, start + column] * scale) / row[column]
            block[:, column + 1 :] -= errors[:, column, None] * row[column + 1 :]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return numbers, scales


def _of_group(
    weights: np.ndarray, levels: Levels, storable: Storable, parts: Sequence[float]
) -> tuple[np.ndarray, np.ndarray | float]:
    """The scale [rows, 1] of all columns of ``weights``, and where shifted integers begin [rows]."""
    _, scales, first = _rounded(weights[:, None], levels, storable, parts)
    return scales[:, :, 0], first[:, 0, 0] if isinstance(first, np.ndarray) else first
