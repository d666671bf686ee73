"""Numbers of 4 or 8 bits in the bytes and words of compressed-tensors."""

from __future__ import annotations

import numpy as np

from hybridge.exporter.checkpoint.quantized.nibbles import pairs


def packed_words(integers: np.ndarray, bits: int) -> np.ndarray:
    """``integers`` [rows, columns], each without sign (plus half of the range), from low to high bits of words.

    Returns [rows, words] int32; the last word of a row is filled up with zeros.
    """
    rows, columns = integers.shape
    words = -(-columns * bits // 32)
    unsigned = np.zeros((rows, words * 32 // bits), np.uint8)
    unsigned[:, :columns] = integers.astype(np.int16) + (1 << (bits - 1))
    if bits == 4:
        unsigned = pairs(unsigned)
    return np.ascontiguousarray(unsigned).view("<i4")
