"""Tensors of a checkpoint whose rows and columns are multiplied while they are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import float32_rows, float32_vector, in_threads, row_blocks


@dataclass(frozen=True, eq=False)
class TensorScale:
    """Factors, float64, of the rows [rows] and columns [columns] of a tensor; of a vector, only of its entries (rows).

    offset: added to the entries before they are multiplied, and subtracted again.
    """

    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    offset: float = 0.0

    def with_scale(self, other: TensorScale) -> TensorScale:
        """Both scales; at most one has rows, and one columns."""
        assert self.rows is None or other.rows is None
        assert self.columns is None or other.columns is None
        rows = other.rows if self.rows is None else self.rows
        columns = other.columns if self.columns is None else self.columns
        return TensorScale(rows, columns, self.offset + other.offset)

    def applied(self, values: np.ndarray, block: slice) -> np.ndarray:
        """``values``, the rows ``block`` of the tensor, multiplied: in their type."""
        rows = None if self.rows is None else self.rows[block]
        if values.ndim == 1:
            assert rows is not None
            return ((values.astype(np.float64) + self.offset) * rows - self.offset).astype(values.dtype)
        with np.errstate(over="ignore"):  # reported by the reader
            if self.columns is not None:
                values = (values * self.columns).astype(values.dtype)
            return values if rows is None else (values * rows[:, None]).astype(values.dtype)


@dataclass(frozen=True)
class ScaledTensor:
    """The tensor in ``slot``, multiplied by ``scale``."""

    slot: TensorSlot
    scale: TensorScale | None = None

    def rows(self, block: slice) -> np.ndarray:
        """Rows of a matrix, or entries of a vector, float32; CheckpointError: a number is not finite."""
        values = float32_rows(self.slot, block) if len(self.slot.shape) > 1 else float32_vector(self.slot)[block]
        if self.scale is None:
            return values
        scaled = self.scale.applied(values, block)
        if not np.isfinite(scaled).all():
            raise CheckpointError(
                f"{self.slot.path}: tensor {self.slot.name} is out of float32's range when it is scaled: choose the "
                "method mse"
            )
        return scaled

    def unscaled(self, values: np.ndarray, block: slice) -> np.ndarray:
        """``values``, rows of the scaled matrix, in the scale of the tensor."""
        if self.scale is None:
            return values
        rows, columns = self.scale.rows, self.scale.columns
        return TensorScale(None if rows is None else 1 / rows, None if columns is None else 1 / columns).applied(
            values, block
        )

    def peak(self) -> float:
        """The largest magnitude of a matrix, 0 without any."""
        rows, columns = self.slot.shape
        sizes = in_threads(lambda part: np.abs(self.rows(part)).max(initial=0), row_blocks(rows, columns))
        return float(max(sizes, default=0))
