"""Matrices of 4 and 8 bits in the tiles that the operator Linear reads (plugin_src/cpu/linear.h)."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.dequantize import Read
from hybridge.runtime.engines.onnxruntime.session_graph import QuantizedMatrix

TILE_ROWS = 16
_ALIGNMENT = 64
# Tiles that are laid out at once: they stay in the caches.
_TILES_AT_ONCE = 32


def tiles_shape(matrix: QuantizedMatrix) -> tuple[int, int]:
    """Number of tiles, and bytes of each."""
    rows, columns = matrix.shape
    return -(-rows // TILE_ROWS), _scale_bytes(matrix) + TILE_ROWS * matrix.values.dtype.nbytes(columns)


def columns_per_scale(matrix: QuantizedMatrix) -> int:
    """Neighbouring numbers of a row that share a scale."""
    scales = matrix.scales.shape
    return matrix.shape[1] // (scales[1] if len(scales) == 2 else 1)


def write_tiles(matrix: QuantizedMatrix, read: Read, out: np.ndarray) -> None:
    """Lay ``matrix`` out in ``out`` uint8 [tiles, bytes] of ``tiles_shape``."""
    rows, columns = matrix.shape
    groups, start = columns // columns_per_scale(matrix), _scale_bytes(matrix)
    scale_type = np.dtype(f"u{matrix.scales.dtype.numpy.itemsize}")
    scales = read(matrix.scales).view(scale_type)
    scales = np.broadcast_to(scales if scales.size == 1 else scales.reshape(rows, groups), (rows, groups))
    words = read(matrix.values).view(np.uint32).reshape(rows, -1)
    for first in range(0, len(out), _TILES_AT_ONCE):
        tiles = out[first : first + _TILES_AT_ONCE]
        part = slice(first * TILE_ROWS, (first + len(tiles)) * TILE_ROWS)
        head = tiles[:, : groups * TILE_ROWS * scale_type.itemsize].view(scale_type)
        _interleave(scales[part], head)
        tiles[:, groups * TILE_ROWS * scale_type.itemsize : start] = 0
        numbers = tiles[:, start:].view(np.uint32)
        _interleave(words[part], numbers)
        if matrix.values.dtype is DType.INT4:
            np.bitwise_xor(numbers, np.uint32(0x88888888), out=numbers)


def _interleave(rows: np.ndarray, out: np.ndarray) -> None:
    """Write [rows, n] to ``out`` [tiles, n * 16] as [tiles, n, 16]; zeros for missing rows."""
    columns = rows.shape[1]
    target = out.reshape(len(out), columns, TILE_ROWS)
    whole, rest = divmod(len(rows), TILE_ROWS)
    target[:whole] = rows[: whole * TILE_ROWS].reshape(whole, TILE_ROWS, columns).swapaxes(1, 2)
    if rest:
        target[whole, :, :rest] = rows[whole * TILE_ROWS :].T
        target[whole, :, rest:] = 0


def _scale_bytes(matrix: QuantizedMatrix) -> int:
    groups = matrix.shape[1] // columns_per_scale(matrix)
    nbytes = groups * TILE_ROWS * matrix.scales.dtype.numpy.itemsize
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
