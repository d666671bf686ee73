"""Integers of 4 or 8 bits in int32 words, as compressed-tensors stores them."""

from __future__ import annotations

import numpy as np


def packed_words(integers: np.ndarray, bits: int) -> np.ndarray:
    """``integers`` [rows, columns] int8, each without sign (plus half of the range), from low to high bits of words.

    Returns [rows, words] int32; the last word of a row is filled up with zeros.
    """
    rows, columns = integers.shape
    words = -(-columns * bits // 32)
    unsigned = np.zeros((rows, words * 32 // bits), np.uint8)
    unsigned[:, :columns] = integers.astype(np.int16) + (1 << (bits - 1))
    if bits == 4:
        unsigned = unsigned[:, 0::2] | unsigned[:, 1::2] << 4
    return np.ascontiguousarray(unsigned).view("<i4")
