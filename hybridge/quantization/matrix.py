"""A weight read, quantised and written in blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.quantization.packing import packed_words
from hybridge.quantization.rounding import rounded
from hybridge.quantization.scheme import Scheme

# Weights of a block; each takes some 40 bytes while it is quantised.
_BLOCK = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class MatrixReport:
    """A quantised weight: the relative L2 error, and the bytes of all its tensors."""

    module: str
    scheme: str
    weights: int
    nbytes: int
    error: float


def write_matrix(
    file: BinaryIO, slot: TensorSlot, scheme: Scheme, scale: DType, offsets: Mapping[str, int], search: bool
) -> MatrixReport:
    """Quantise the weight in ``slot`` and write its tensors at ``offsets`` of ``file``, by what follows the module.

    CheckpointError when it is damaged.
    """
    rows, columns = slot.shape
    layout = scheme.layout(rows, columns, scale)
    size = {name: dtype.itemsize * int(np.prod(shape[1:])) for name, (dtype, shape) in layout.items()}
    squares = np.zeros(2)

    def quantised(block: slice) -> tuple[int, dict[str, bytes], np.ndarray]:
        weights = _float32(slot, block)
        group = scheme.group or columns
        integers, scales = rounded(weights, scheme.bits, group, scale.numpy, search)
        groups = weights.reshape(len(weights), -1, group)
        difference = integers.reshape(groups.shape) * scales.astype(np.float32)[:, :, None] - groups
        sums = np.array([np.vdot(difference, difference), np.vdot(groups, groups)], np.float64)
        packed = packed_words(integers, scheme.bits).tobytes()
        return block.start, {"weight_packed": packed, "weight_scale": scales.tobytes()}, sums

    with ThreadPoolExecutor(_THREADS) as pool:
        for start, parts, sums in pool.map(quantised, _blocks(rows, columns)):
            squares += sums
            for name, data in parts.items():
                file.seek(offsets[name] + start * size[name])
                file.write(data)
    file.seek(offsets["weight_shape"])
    file.write(np.array(slot.shape, "<i8").tobytes())
    nbytes = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in layout.values())
    error = float(np.sqrt(squares[0] / squares[1])) if squares[1] else 0.0
    return MatrixReport(slot.name.removesuffix(".weight"), scheme.name, rows * columns, nbytes, error)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK // columns)
    yield from (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _float32(slot: TensorSlot, block: slice) -> np.ndarray:
    """Rows of a weight [rows, columns]; CheckpointError when one is not finite."""
    stored = slot.map()[block]
    if slot.dtype is DType.BFLOAT16:
        weights = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        weights = stored.astype(np.float32)
    if not np.isfinite(weights).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(weights))[0])
        raise CheckpointError(
            f"{slot.path}: tensor {slot.name} holds {weights[row, column]} at index {[block.start + row, column]}: "
            "expected finite weights: the checkpoint is damaged"
        )
    return weights
