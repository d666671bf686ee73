"""Quantised weights that the checkpoint stores in the form the graph uses, and their scales."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, row_ranges

# Blocks of fewer columns than this are refused by the engines' kernels.
_SMALLEST_BLOCK = 16


def as_stored(slot: TensorSlot, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> GraphTensor:
    """The bytes of ``slot``, as numbers of type ``dtype`` in ``shape`` where these are given."""
    dtype, shape = dtype or slot.dtype, slot.shape if shape is None else shape
    return GraphTensor(dtype, shape, stored=slot)


def one_scale(slot: TensorSlot) -> GraphTensor:
    """A scale for all numbers."""
    if slot.shape not in ((), (1,), (1, 1)):
        raise CheckpointError(f"{slot.name}: expected one scale, found shape {list(slot.shape)}")
    return as_stored(slot, shape=())


def reciprocal(slot: TensorSlot) -> GraphTensor:
    """float32 []: one over the number of ``slot``."""
    one_scale(slot)

    def blocks() -> Iterator[np.ndarray]:
        with np.errstate(divide="ignore"):  # the scan refuses a zero
            yield np.float32(1) / slot.map().astype(np.float32).reshape(1)

    return GraphTensor(DType.FLOAT32, (), blocks=blocks)


def block_scales(slot: TensorSlot, shape: tuple[int, int], rows: int, columns: int) -> tuple[GraphTensor, int]:
    """Scales of a matrix [shape] in blocks of ``rows`` x ``columns``, and how many columns share a scale in the graph.

    The last blocks may be partial. Scales are repeated where the graph's blocks have fewer columns.
    """
    expected = (-(-shape[0] // rows), -(-shape[1] // columns))
    if slot.shape != expected:
        raise CheckpointError(f"{slot.name}: expected shape {list(expected)} of its blocks, found {list(slot.shape)}")
    own = gcd(columns, shape[1])
    if own < _SMALLEST_BLOCK:
        raise UnsupportedError(f"{slot.name}: blocks of {columns} columns in rows of {shape[1]} are not supported")

    def blocks() -> Iterator[np.ndarray]:
        wide = np.repeat(slot.map(), columns // own, axis=1)[:, : shape[1] // own]
        for part in row_ranges(shape[0], wide.shape[1] * wide.itemsize):
            yield wide[np.arange(part.start, part.stop) // rows]

    return GraphTensor(slot.dtype, (shape[0], shape[1] // own), blocks=blocks), own


def power_of_two_scales(slot: TensorSlot) -> GraphTensor:
    """bfloat16 scales 2^(e - 127) from the stored exponent bytes e."""

    def blocks() -> Iterator[np.ndarray]:
        raw = slot.map()
        for part in row_ranges(len(raw), 2 * raw[0].size):
            # 2^-127 is subnormal in bfloat16: only the highest bit of its mantissa is set.
            yield np.maximum(np.left_shift(raw[part], 7, dtype=np.uint16), np.uint16(0x40))

    return GraphTensor(DType.BFLOAT16, slot.shape, blocks=blocks)
