"""Quantised matrices as float32, and in the layout of ONNX Runtime's MatMulNBits."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.session_graph import QuantizedMatrix, StoredTensor, kernel_bits

# About this many numbers are dequantised at a time.
_NUMBERS = 1 << 20
# By type: the two 4-bit numbers of each byte [256, 2], low half first.
_PAIRS: dict[DType, np.ndarray] = {}
# An E2M1 number is an 8-bit integer times this.
_HALF = np.float32(0.5)

Read = Callable[[StoredTensor], np.ndarray]
"""The bytes [n] of a tensor."""


def dequantized(matrix: QuantizedMatrix, read: Read) -> np.ndarray:
    """float32 [rows, columns] of ``matrix``."""
    return next(dequantized_parts(matrix, matrix.shape[0], read))


def dequantized_parts(matrix: QuantizedMatrix, rows: int, read: Read) -> Iterator[np.ndarray]:
    """Yields ``matrix`` as float32 [rows, columns], ``rows`` rows at a time."""
    total, columns = matrix.shape
    values, scales = _rows(matrix.values, read), _scales(matrix, read)
    zeros = None
    if matrix.zero_points is not None:
        zeros = _floats(read(matrix.zero_points), matrix.zero_points).reshape(scales.shape)
    step = max(1, _NUMBERS // columns)
    for first in range(0, total, rows):
        result = np.empty((rows, columns), np.float32)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            part = slice(first + start, first + stop)
            numbers = _numbers(values[part], matrix.values.dtype)
            numbers = numbers.reshape(-1, scales.shape[1], columns // scales.shape[1])
            if zeros is not None:
                numbers = numbers - (zeros[part] if len(zeros) > 1 else zeros)[..., None]
            factors = scales[part] if len(scales) > 1 else scales
            np.multiply(numbers, factors[..., None], out=result[start:stop].reshape(numbers.shape))
        yield result


def blocks_of(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """uint8 [rows, blocks, block * bits / 8] for MatMulNBits: unsigned numbers, the last block padded."""
    rows, columns = matrix.shape
    count, bits = -(-columns // block), kernel_bits(matrix)
    # Mapped memory returns to the system when it is freed; an allocator may retain it.
    result = np.frombuffer(mmap.mmap(-1, rows * count * block * bits // 8), np.uint8).reshape(rows, -1)
    stored, used = _rows(matrix.values, read), result[:, : columns * bits // 8]
    if matrix.values.dtype is DType.FLOAT4E2M1:
        unsigned = (_pairs(DType.FLOAT4E2M1) / _HALF + 128).astype(np.uint8)
        step = max(1, _NUMBERS // columns)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            used[part] = unsigned[stored[part]].reshape(-1, columns)
    else:
        np.bitwise_xor(stored, np.uint8(0x88 if bits == 4 else 0x80), out=used)
    return result.reshape(rows, count, block * bits // 8)


def block_scales(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """float32 [rows * blocks] for the numbers of ``blocks_of``."""
    scales = _scales(matrix, read)
    if matrix.values.dtype is DType.FLOAT4E2M1:
        scales = scales * _HALF
    return np.ascontiguousarray(_per_block(scales, matrix, block)).reshape(-1)


def block_zero_points(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """uint8 [rows * blocks * bits / 8], the blocks of a row rounded up to whole bytes: unsigned numbers."""
    assert matrix.zero_points is not None
    bits = kernel_bits(matrix)
    numbers = _floats(read(matrix.zero_points), matrix.zero_points).astype(np.int16) + (1 << (bits - 1))
    spread = _per_block(numbers.reshape(matrix.shape[0], -1), matrix, block).astype(np.uint8)
    if bits == 8:
        return spread.reshape(-1)
    if spread.shape[1] % 2:
        spread = np.pad(spread, ((0, 0), (0, 1)))
    return (spread[:, ::2] | spread[:, 1::2] << 4).reshape(-1)


def row_scales(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """float32 [rows, groups], or [1, 1] for a single scale; ``block`` is not used."""
    return _scales(matrix, read)


def scales_of_rows(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """float32 [rows, groups]: ``row_scales`` for every row."""
    scales = _scales(matrix, read)
    return np.ascontiguousarray(np.broadcast_to(scales, (matrix.shape[0], scales.shape[1])))


def factors_of_rows(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """float32 [rows, 1]: the global scale of each row; ``block`` is not used."""
    assert matrix.global_scale is not None
    whole = _floats(read(matrix.global_scale), matrix.global_scale)
    return np.ascontiguousarray(np.broadcast_to(whole.reshape(-1, 1), (matrix.shape[0], 1)))


def row_zero_points(matrix: QuantizedMatrix, block: int, read: Read) -> np.ndarray:
    """float32 [rows, groups], as ``row_scales``."""
    assert matrix.zero_points is not None
    zeros = _floats(read(matrix.zero_points), matrix.zero_points)
    return zeros.reshape(matrix.shape[0] if matrix.scales.shape else 1, -1)


def numbers_of_bytes(dtype: DType) -> np.ndarray:
    """float32 [256] or [256, 2]: the one or two numbers of type ``dtype`` in each byte."""
    return _numbers(np.arange(256, dtype=np.uint8), dtype)


def _per_block(items: np.ndarray, matrix: QuantizedMatrix, block: int) -> np.ndarray:
    """[rows, blocks]: the item of ``items`` [rows or 1, groups] for each block."""
    rows, columns = matrix.shape
    count = -(-columns // block)
    groups: int = items.shape[-1]
    spread = np.repeat(items, max(1, count // groups), axis=1)
    return np.broadcast_to(spread, (rows, count))


def _scales(matrix: QuantizedMatrix, read: Read) -> np.ndarray:
    """float32 [rows, groups], or [1, 1] for a single scale."""
    tensor = matrix.scales
    scales = _floats(read(tensor), tensor).reshape(tensor.shape)
    if matrix.global_scale is not None:
        whole = _floats(read(matrix.global_scale), matrix.global_scale)
        scales = scales * (whole.reshape(-1, 1) if matrix.global_scale.shape else whole)
    return scales.reshape(len(scales), -1) if scales.ndim else scales.reshape(1, 1)


def _floats(raw: np.ndarray, tensor: StoredTensor) -> np.ndarray:
    """All numbers of a small tensor as float32 [n]."""
    if tensor.dtype in (DType.INT4, DType.FLOAT4E2M1):
        count = int(np.prod(tensor.shape))
        return _pairs(tensor.dtype)[raw].reshape(-1)[:count]
    return raw.view(tensor.dtype.numpy).astype(np.float32)


def _rows(tensor: StoredTensor, read: Read) -> np.ndarray:
    """The bytes of a matrix [rows, n]."""
    return read(tensor).reshape(tensor.shape[0], -1)


def _numbers(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 numbers of bytes [rows, n]."""
    if dtype in (DType.INT4, DType.FLOAT4E2M1):
        return _pairs(dtype)[raw]
    return raw.view(dtype.numpy).astype(np.float32)


def _pairs(dtype: DType) -> np.ndarray:
    """float32 [256, 2]: the two numbers of each byte."""
    if dtype not in _PAIRS:
        halves = np.arange(16, dtype=np.uint8)
        if dtype is DType.INT4:
            numbers = ((halves ^ 8).astype(np.int8) - 8).astype(np.float32)
        else:
            numbers = halves.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        both = np.arange(256)
        _PAIRS[dtype] = np.stack([numbers[both & 15], numbers[both >> 4]], axis=1)
    return _PAIRS[dtype]
