"""A quantised weight in the form that the graph has, whatever the format in which the checkpoint stores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot

# Bytes of a converted tensor that are computed at once.
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class GraphTensor:
    """An initializer. Its bytes are those of ``stored``, a tensor of the checkpoint, or ``blocks`` computes them.

    blocks: arrays whose bytes follow each other in the tensor; made anew by each call, so that none stays in memory.
    """

    dtype: DType
    shape: tuple[int, ...]
    stored: TensorSlot | None = None
    blocks: Callable[[], Iterator[np.ndarray]] | None = None


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [rows, columns] of numbers of few bits. Element (n, k) is

        (values[n, k] - zero_points[n, k // block]) * scales[n, k // block]

    scales: [rows, columns / block]; of one scale a row (block None) [rows], of one scale for all [].
    zero_points: as scales, of the type of ``values``; None: all are zero.
    global_scale: float32 [], with which ``scales`` are multiplied.
    order: int64 [columns]; column k of ``values`` belongs to the input's feature order[k]. None: to feature k.
    factors: [columns], with which the input's features are multiplied first.
    activations: how the checkpoint asks for inputs to be rounded, in words; "" where it does not.
    format: its name for reports. sources: the tensors of the checkpoint that it is made of.
    """

    name: str
    format: str
    shape: tuple[int, int]
    values: GraphTensor
    scales: GraphTensor
    block: int | None
    sources: tuple[TensorSlot, ...]
    zero_points: GraphTensor | None = None
    global_scale: GraphTensor | None = None
    order: GraphTensor | None = None
    factors: GraphTensor | None = None
    activations: str = ""

    @property
    def parts(self) -> dict[str, GraphTensor]:
        """The initializers by the last part of their names."""
        named = {
            "weight": self.values,
            "weight_scale": self.scales,
            "weight_zero_point": self.zero_points,
            "weight_global_scale": self.global_scale,
            "weight_order": self.order,
            "pre_quant_scale": self.factors,
        }
        return {suffix: tensor for suffix, tensor in named.items() if tensor is not None}


def row_ranges(rows: int, row_bytes: int) -> Iterator[slice]:
    """Ranges of rows of a few megabytes each; all but the last have a multiple of 8 rows."""
    step = max(8, _BLOCK_BYTES // max(1, row_bytes) // 8 * 8)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
