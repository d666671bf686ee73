"""A weight read, quantised and written in blocks of rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.quantization.scheme import MatrixContext, Scheme

# Weights of a block; each takes some 40 bytes while it is quantised.
_BLOCK = 1 << 20
# Where columns are rounded one after another, each takes as long for many rows as for few.
_BLOCK_IN_TURN = 1 << 23
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
    file: BinaryIO, slot: TensorSlot, scheme: Scheme, context: MatrixContext, offsets: Mapping[str, int]
) -> MatrixReport:
    """Quantise the weight in ``slot`` and write its tensors at ``offsets`` of ``file``, by what follows the module.

    CheckpointError when it is damaged.
    """
    rows, columns = slot.shape
    layout = scheme.layout(rows, columns, context.scale)
    difference = total = 0.0

    def quantised(block: slice) -> tuple[int, Mapping[str, np.ndarray], float, float]:
        weights = _float32(slot, block)
        found = scheme.rows(weights, context)
        return block.start, found.parts, _squares(found.products - weights), _squares(weights)

    at_once = _BLOCK if context.factor is None else _BLOCK_IN_TURN
    with ThreadPoolExecutor(_THREADS) as pool:
        for start, parts, lost, size in pool.map(quantised, _blocks(rows, columns, at_once)):
            difference, total = difference + lost, total + size
            for name, values in parts.items():
                file.seek(offsets[name] + start * values[0].nbytes)
                file.write(np.ascontiguousarray(values).tobytes())
    for name, values in scheme.whole(rows, columns, context).items():
        file.seek(offsets[name])
        file.write(values.tobytes())
    nbytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
    error = math.sqrt(difference / total) if total else 0.0
    return MatrixReport(slot.name.removesuffix(".weight"), scheme.name, rows * columns, nbytes, error)


def peak_of(slot: TensorSlot) -> float:
    """The largest magnitude of a weight; CheckpointError as in ``write_matrix``."""
    return max(float(np.abs(_float32(slot, block)).max()) for block in _blocks(*slot.shape))


def _squares(values: np.ndarray) -> float:
    return float(np.einsum("rc,rc->r", values, values).sum(dtype=np.float64))


def _blocks(rows: int, columns: int, block: int = _BLOCK) -> Iterator[slice]:
    step = max(1, block // columns)
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
