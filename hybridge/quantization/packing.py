"""Numbers of 4 or 8 bits in the bytes and words of compressed-tensors."""

from __future__ import annotations

import numpy as np

from hybridge.exporter.checkpoint.quantized.nibbles import packed_nibbles


def packed_words(integers: np.ndarray, bits: int) -> np.ndarray:
    """``integers`` [rows, columns] as unsigned numbers (plus half the range), from the low to the high bits of words.

    Returns [rows, words] int32; the last word of a row is filled up with zeros.
    """
    rows, columns = integers.shape
    words = -(-columns * bits // 32)
    unsigned = np.zeros((rows, words * 32 // bits), np.uint8)
    unsigned[:, :columns] = integers.astype(np.int16) + (1 << (bits - 1))
    if bits == 4:
        unsigned = packed_nibbles(unsigned)
    return np.ascontiguousarray(unsigned).view("<i4")
