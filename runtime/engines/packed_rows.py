"""Rows of recurrent states in 8 bits: every row is 8-bit numbers times one float32.

A row is the last axis of a state. Its factor is its largest magnitude over the largest number of the type, so that an
int8 is off by at most 1/254 of the row's largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

EXACT, INT8, FP8 = "exact", "int8", "fp8"
TYPES: Mapping[str, np.dtype] = {INT8: np.dtype(np.int8), FP8: np.dtype(ml_dtypes.float8_e4m3fn)}
LARGEST: Mapping[str, float] = {INT8: 127.0, FP8: 448.0}


@dataclass(frozen=True)
class PackedRows:
    """``values`` [..., row] in 8 bits, ``factors`` [...] float32, and the type that they were of."""

    values: np.ndarray
    factors: np.ndarray
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self.values.nbytes + self.factors.nbytes

    def unpacked(self) -> np.ndarray:
        """The unpacked values, in their original type."""
        return (self.values.astype(np.float32) * self.factors[..., None]).astype(self.dtype)


def packed_rows(state: np.ndarray, kind: str) -> PackedRows:
    """``state`` [..., row] as ``kind``, rounded to nearest even.

    The factor of a row of zeros is 0. One number that is not finite makes the whole row NaN, as its factor then is.
    """
    exact = state.astype(np.float32)
    largest = np.abs(exact).max(axis=-1)
    factors = np.where(np.isfinite(largest), largest / np.float32(LARGEST[kind]), np.float32(np.nan))
    values = exact / np.where(factors > 0, factors, np.float32(1))[..., None]
    values = np.clip(values, -LARGEST[kind], LARGEST[kind])
    values[np.isnan(factors)] = 0
    return PackedRows((np.rint(values) if kind == INT8 else values).astype(TYPES[kind]), factors, state.dtype)
