"""Recurrent states in 8 bits on the host: every row is numbers of one type times one float32.

A row is the last axis of a state. Its factor is its largest magnitude over the largest number of the type, so that an
int8 is off by at most 1/254 of the row's largest magnitude. Convolution states, which are small, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from artifact.names import recurrent_state
from runtime.engines.paged import HostCopy, PagedEngine

EXACT, INT8, FP8 = "exact", "int8", "fp8"
_TYPES: Mapping[str, np.dtype] = {INT8: np.dtype(np.int8), FP8: np.dtype(ml_dtypes.float8_e4m3fn)}
_LARGEST: Mapping[str, float] = {INT8: 127.0, FP8: 448.0}


@dataclass(frozen=True)
class PackedRows:
    """``values`` [..., row] in 8 bits, ``factors`` [...] float32, and the type that they were of."""

    values: np.ndarray
    factors: np.ndarray
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Host memory that they take."""
        return self.values.nbytes + self.factors.nbytes

    def unpacked(self) -> np.ndarray:
        """What they stand for, in the type that it was of."""
        return (self.values.astype(np.float32) * self.factors[..., None]).astype(self.dtype)


def packed_rows(state: np.ndarray, kind: str) -> PackedRows:
    """``state`` [..., row] as ``kind``, rounded to nearest even; the factor of a row of zeros is 0."""
    exact = state.astype(np.float32)
    factors = (np.abs(exact).max(axis=-1) / np.float32(_LARGEST[kind])).astype(np.float32)
    values = exact / np.where(factors > 0, factors, np.float32(1))[..., None]
    values = np.clip(values, -_LARGEST[kind], _LARGEST[kind])
    return PackedRows((np.rint(values) if kind == INT8 else values).astype(_TYPES[kind]), factors, state.dtype)


class PackedState(HostCopy):
    """One slot, its recurrent states as ``kind``."""

    blocks, slots = 0, 1

    def __init__(self, engine: PagedEngine, slot: HostCopy, kind: str) -> None:
        """``slot``: a copy of one slot and no block by ``engine``."""
        self._engine = engine
        recurrent = {recurrent_state(index) for index in range(len(engine.config.recurrent_layers))}
        arrays = engine.arrays_from_copy(slot)
        self._packed = {name: packed_rows(arrays[name], kind) for name in recurrent & arrays.keys()}
        self._exact = {name: array for name, array in arrays.items() if name not in self._packed}

    @property
    def nbytes(self) -> int:
        exact = sum(array.nbytes for array in self._exact.values())
        return exact + sum(rows.nbytes for rows in self._packed.values())

    def unpacked(self) -> HostCopy:
        """As the engine takes it."""
        states = {name: rows.unpacked() for name, rows in self._packed.items()}
        return self._engine.copy_from_arrays({**self._exact, **states}, 0, 1)
