"""A weight read, quantised and written in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import BLOCK, float32_rows, in_threads, row_blocks
from hybridge.quantization.scheme import MatrixContext, Scheme

# Where columns are rounded one after another, each takes as long for many rows as for few.
_BLOCK_IN_TURN = 1 << 23


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
        weights = float32_rows(slot, block)
        found = scheme.rows(weights, context)
        return block.start, found.parts, _squares(found.products - weights), _squares(weights)

    at_once = BLOCK if context.factor is None else _BLOCK_IN_TURN
    for start, parts, lost, size in in_threads(quantised, row_blocks(rows, columns, at_once)):
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


def _squares(values: np.ndarray) -> float:
    """The sum of squares, in float64: those of float32 numbers do not fit into float32."""
    return float(np.einsum("rc,rc->", values, values, dtype=np.float64))
