"""Integers of 4 or 8 bits in int32 words along a row, as compressed-tensors stores them ("pack-quantized")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.nibbles import INTEGERS, signed_from_numbers, unpacked_words
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, row_ranges

# Where 4 bits have one scale a row, TensorRT keeps them packed only with blocks: the row's scale is repeated.
_REPEATED_BLOCKS = (128, 64, 32, 16)


def integer_values(
    name: str,
    bits: int,
    shape: tuple[int, int],
    numbers: Callable[[slice], np.ndarray],
    order: np.ndarray | None = None,
) -> GraphTensor:
    """The values of a weight; ``numbers`` gives unsigned numbers uint8 [n, columns] of the rows of a slice.

    order: the place in ``numbers`` of each column of the result.
    """
    rows, columns = shape
    if bits == 4 and columns % 2:
        raise UnsupportedError(f"{name}: 4-bit weights with an odd number of columns ({columns}) are not supported")

    def blocks() -> Iterator[np.ndarray]:
        for part in row_ranges(rows, columns):
            found = numbers(part)
            yield signed_from_numbers(found if order is None else found[:, order], bits)

    return GraphTensor(INTEGERS[bits], shape, blocks=blocks)


def zero_points(bits: int, numbers: Callable[[], np.ndarray], shape: tuple[int, ...]) -> GraphTensor | None:
    """Zero points from unsigned ``numbers`` [rows, groups], in the ``shape`` of the scales; None if all are mid-range.

    With a single group, each is repeated as often as the scales are.
    """
    if bool((numbers() == 1 << (bits - 1)).all()):
        return None

    def blocks() -> Iterator[np.ndarray]:
        found = numbers()
        repeats = prod(shape) // found.size
        yield signed_from_numbers(np.repeat(found, repeats, axis=1).reshape(shape), bits)

    return GraphTensor(INTEGERS[bits], shape, blocks=blocks)


def row_block(bits: int, columns: int) -> int | None:
    """How many columns share a scale in the graph where the checkpoint has one a row; None: all of the row."""
    return next((block for block in _REPEATED_BLOCKS if bits == 4 and columns % block == 0), None)


def scales_of_rows(slot: TensorSlot, rows: int, columns: int, block: int | None) -> GraphTensor:
    """One scale a row from a tensor with ``rows`` elements, once for each ``block`` columns."""
    if block is None:
        return GraphTensor(slot.dtype, (rows,), stored=slot)

    def blocks() -> Iterator[np.ndarray]:
        yield np.repeat(slot.map().reshape(-1, 1), columns // block, axis=1)

    return GraphTensor(slot.dtype, (rows, columns // block), blocks=blocks)


def transposed_scales(slot: TensorSlot, rows: int) -> GraphTensor:
    """Scales [rows, groups] from a tensor [groups, rows]."""

    def blocks() -> Iterator[np.ndarray]:
        for part in row_ranges(rows, slot.shape[0] * slot.dtype.itemsize):
            yield slot.map()[:, part].T

    return GraphTensor(slot.dtype, (rows, slot.shape[0]), blocks=blocks)


def group_order(name: str, groups: np.ndarray, group: int) -> np.ndarray | None:
    """The columns in the order of their groups; None where they lie so. ``groups``: the group of each column."""
    count = len(groups) // group
    if groups.min() < 0 or groups.max() >= count:
        wrong = int(groups.min()) if groups.min() < 0 else int(groups.max())
        raise CheckpointError(
            f"{name}: expected groups from 0 to {count - 1}, found {wrong}: the checkpoint is damaged"
        )
    sizes = np.bincount(groups, minlength=count)
    if (sizes != group).any():
        wrong = int(np.argmax(sizes != group))
        raise CheckpointError(f"{name}: expected {group} columns in every group, found {sizes[wrong]} in group {wrong}")
    order = np.argsort(groups, kind="stable")
    return None if (order == np.arange(len(order))).all() else order


def order_tensor(order: np.ndarray | None) -> GraphTensor | None:
    """The input features in the order of the columns."""
    if order is None:
        return None
    return GraphTensor(DType.INT64, order.shape, blocks=lambda: iter([order.astype(np.int64)]))


def words_of_rows(slot: TensorSlot, bits: int, columns: int) -> Callable[[slice], np.ndarray]:
    """Unsigned numbers of rows of int32 words [rows, n]."""
    return lambda part: unpacked_words(slot.map()[part], bits)[:, :columns]
