"""Converts integers of 4 or 8 bits between the bit orders of checkpoints and of ONNX.

ONNX stores signed numbers, two of 4 bits per byte, the first in the low half. Checkpoints store unsigned numbers in
int32 words; the signed number differs in the highest bit.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType

# The bit in which signed and unsigned numbers differ, for every number of a byte.
_SIGNS = {4: 0x88, 8: 0x80}
INTEGERS = {4: DType.INT4, 8: DType.INT8}


def unpacked_words(words: np.ndarray, bits: int) -> np.ndarray:
    """The unsigned numbers uint8 [rows, n * 32 / bits] of int32 ``words`` [rows, n], lowest bits first."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    return raw if bits == 8 else _halves(raw)


def unpacked_bytes(raw: np.ndarray, bits: int) -> np.ndarray:
    """ONNX's bytes [rows, n] as unsigned numbers uint8 [rows, n * 8 / bits] with the same bits."""
    return raw if bits == 8 else _halves(raw)


def signed_from_numbers(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned ``numbers`` (uint8) as ONNX's bytes; flat where rows of 4-bit numbers do not fill whole bytes."""
    if bits == 8:
        return numbers ^ np.uint8(_SIGNS[8])
    flat = numbers if numbers.shape[-1] % 2 == 0 else np.append(numbers.ravel(), np.zeros(numbers.size % 2, np.uint8))
    return packed_nibbles(flat) ^ np.uint8(_SIGNS[4])


def packed_nibbles(nibbles: np.ndarray) -> np.ndarray:
    """Pairs of 4-bit ``nibbles`` (uint8) of the last axis in one byte each, the first in the low half."""
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def packed_e2m1(numbers: np.ndarray) -> np.ndarray:
    """``numbers`` [rows, columns] rounded to e2m1, two per byte: uint8 [rows, columns / 2]; ``columns`` is even."""
    return packed_nibbles(numbers.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def _halves(raw: np.ndarray) -> np.ndarray:
    numbers = np.empty((len(raw), 2 * raw.shape[1]), np.uint8)
    numbers[:, ::2] = raw & 15
    numbers[:, 1::2] = raw >> 4
    return numbers
