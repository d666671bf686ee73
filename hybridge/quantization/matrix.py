"""A weight read, quantised and written in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from hybridge.exporter.rounding.blocks import BLOCK, in_threads, row_blocks
from hybridge.quantization.scaled import ScaledTensor
from hybridge.quantization.scheme import MatrixContext, Scheme

# Methods that round column by column take as long for few rows as for many.
_BLOCK_IN_TURN = 1 << 22


@dataclass(frozen=True)
class MatrixReport:
    """A quantised weight: the relative L2 error, and the bytes of all its tensors."""

    module: str
    scheme: str
    weights: int
    nbytes: int
    error: float


def write_matrix(
    file: BinaryIO, weight: ScaledTensor, scheme: Scheme, context: MatrixContext, offsets: Mapping[str, int]
) -> MatrixReport:
    """Quantise ``weight`` and write its tensors at ``offsets`` of ``file``, by what follows the module.

    CheckpointError when it is damaged.
    """
    rows, columns = weight.slot.shape
    layout = scheme.layout(rows, columns, context.scale)
    difference = total = 0.0

    def quantised(block: slice) -> tuple[int, Mapping[str, np.ndarray], float, float]:
        weights = weight.rows(block)
        found = scheme.rows(weights, context)
        stored = weight.unscaled(weights, block)
        return block.start, found.parts, _squares(weight.unscaled(found.products, block) - stored), _squares(stored)

    at_once = BLOCK if context.factor is None else _BLOCK_IN_TURN
    for start, parts, lost, size in in_threads(quantised, row_blocks(rows, columns, at_once, scheme.rows_at_once)):
        difference, total = difference + lost, total + size
        before = scheme.layout(start, columns, context.scale)
        for name, values in parts.items():
            dtype, shape = before[name]
            file.seek(offsets[name] + dtype.nbytes(math.prod(shape)))
            file.write(np.ascontiguousarray(values).tobytes())
    for name, values in scheme.whole(rows, columns, context).items():
        file.seek(offsets[name])
        file.write(values.tobytes())
    nbytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
    error = math.sqrt(difference / total) if total else 0.0
    return MatrixReport(weight.slot.name.removesuffix(".weight"), scheme.name, rows * columns, nbytes, error)


def _squares(values: np.ndarray) -> float:
    """The sum of squares, in float64: those of float32 numbers do not fit into float32."""
    return float(np.einsum("rc,rc->", values, values, dtype=np.float64))
