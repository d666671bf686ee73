"""Matrices of int4, int8 and e2m1 numbers in the tiles that the operator Linear reads (plugin_src/cpu/linear.h)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.dequantize import Read, row_zero_points
from hybridge.runtime.engines.onnxruntime.session_graph import QuantizedMatrix, StoredTensor

TILE_ROWS = 16
_SPAN_SCALES = 64
# Tiles that are laid out at once: they stay in the caches.
_TILES_AT_ONCE = 32
# Copies the bytes of a tensor to an array.
Fill = Callable[[StoredTensor, np.ndarray], None]


def tiles_shape(matrix: QuantizedMatrix) -> tuple[int, int]:
    """Number of tiles, and bytes of each."""
    rows, columns = matrix.shape
    spans = -(-columns // columns_per_scale(matrix) // _groups_at_once(matrix))
    return -(-rows // TILE_ROWS), spans * _SPAN_SCALES + TILE_ROWS * matrix.values.dtype.nbytes(columns)


def columns_per_scale(matrix: QuantizedMatrix) -> int:
    """Neighbouring numbers of a row that share a scale."""
    scales = matrix.scales.shape
    return matrix.shape[1] // (scales[1] if len(scales) == 2 else 1)


def scale_dtype(matrix: QuantizedMatrix) -> DType:
    """The type of the scales in tiles: e4m3 scales are stored as float16."""
    stored = matrix.scales.dtype
    return DType.FLOAT16 if stored is DType.FLOAT8E4M3FN else stored


def write_tiles(matrix: QuantizedMatrix, read: Read, fill: Fill, out: np.ndarray) -> None:
    """Lay ``matrix`` out in ``out`` uint8 [tiles, bytes] of ``tiles_shape``.

    ``fill`` reads some rows of numbers at a time: pages of a map would be memory of the process until the end.
    """
    rows, columns = matrix.shape
    groups, at_once = columns // columns_per_scale(matrix), _groups_at_once(matrix)
    scale_type = np.dtype(f"u{scale_dtype(matrix).itemsize}")
    scales = read(matrix.scales).view(matrix.scales.dtype.numpy)
    scales = scales.astype(scale_dtype(matrix).numpy, copy=False).view(scale_type)
    scales = np.broadcast_to(scales if scales.size == 1 else scales.reshape(rows, groups), (rows, groups))
    row_bytes = matrix.values.dtype.nbytes(columns)
    buffer = np.empty((min(rows, _TILES_AT_ONCE * TILE_ROWS), row_bytes), np.uint8)
    group_words = row_bytes // 4 // groups
    offset = np.uint32(0x88888888 if matrix.values.dtype is DType.INT4 else 0)
    for first in range(0, len(out), _TILES_AT_ONCE):
        tiles = out[first : first + _TILES_AT_ONCE]
        part = slice(first * TILE_ROWS, min(rows, (first + len(tiles)) * TILE_ROWS))
        stored = buffer[: part.stop - part.start]
        place = matrix.values.offset + part.start * row_bytes
        fill(replace(matrix.values, offset=place, shape=(len(stored), columns)), stored)
        words = stored.view(np.uint32)
        start = done = 0
        for spans, size in ((groups // at_once, at_once), (groups % at_once, 1)):
            if not spans:
                continue
            nbytes = _SPAN_SCALES + 4 * TILE_ROWS * size * group_words
            target = tiles[:, start : start + spans * nbytes].reshape(len(tiles), spans, nbytes)
            stop = done + spans * size
            heads = target[:, :, :_SPAN_SCALES].view(scale_type)
            _interleave(scales[part, done:stop], heads[:, :, : size * TILE_ROWS])
            heads[:, :, size * TILE_ROWS :] = 0
            numbers = target[:, :, _SPAN_SCALES:].view(np.uint32)
            _interleave(words[:, done * group_words : stop * group_words], numbers)
            np.bitwise_xor(numbers, offset, out=numbers)
            start, done = start + spans * nbytes, stop


def tile_zeros(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """int8 [tiles, groups * 16]: zero points, zeros for missing rows; ``block`` is not used."""
    zeros = row_zero_points(matrix, block, read)
    rows, groups = matrix.shape[0], zeros.shape[1]
    found = np.zeros((tiles_shape(matrix)[0] * TILE_ROWS, groups), np.int8)
    found[:rows] = zeros
    return np.ascontiguousarray(found.reshape(-1, TILE_ROWS, groups).swapaxes(1, 2)).reshape(-1, groups * TILE_ROWS)


def _interleave(rows: np.ndarray, out: np.ndarray) -> None:
    """Write [rows, spans * n] to ``out`` [tiles, spans, n * 16] as [tiles, spans, n, 16]; zeros for missing rows."""
    spans, count = out.shape[1], out.shape[2] // TILE_ROWS
    target = out.reshape(len(out), spans, count, TILE_ROWS)
    whole, rest = divmod(len(rows), TILE_ROWS)
    split = rows[: whole * TILE_ROWS].reshape(whole, TILE_ROWS, spans, count)
    target[:whole] = split.transpose(0, 2, 3, 1)
    if rest:
        target[whole, :, :, :rest] = rows[whole * TILE_ROWS :].reshape(rest, spans, count).transpose(1, 2, 0)
        target[whole, :, :, rest:] = 0


def _groups_at_once(matrix: QuantizedMatrix) -> int:
    """Groups of a span."""
    return 4 // scale_dtype(matrix).itemsize
