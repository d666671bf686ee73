"""Numbers of 4 or 8 bits in the bytes and words of compressed-tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def packed_words(integers: np.ndarray, bits: int) -> np.ndarray:
    """``integers`` [rows, columns], each without sign (plus half of the range), from low to high bits of words.

    Returns [rows, words] int32; the last word of a row is filled up with zeros.
    """
    rows, columns = integers.shape
    words = -(-columns * bits // 32)
    unsigned = np.zeros((rows, words * 32 // bits), np.uint8)
    unsigned[:, :columns] = integers.astype(np.int16) + (1 << (bits - 1))
    if bits == 4:
        unsigned = _pairs(unsigned)
    return np.ascontiguousarray(unsigned).view("<i4")


def packed_e2m1(numbers: np.ndarray) -> np.ndarray:
    """``numbers`` [rows, columns], an even number of columns, of type E2M1 as [rows, columns / 2] uint8."""
    return _pairs(numbers.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def _pairs(nibbles: np.ndarray) -> np.ndarray:
    """Of each two columns one byte, the first in its low half."""
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4
