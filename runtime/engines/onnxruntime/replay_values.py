"""What bodies of recurrent operators over draft tokens return, and what advances get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter
from hybridge.runtime.engines.onnxruntime.kernels import Kernels


@dataclass(frozen=True)
class Stored:
    """One value that the tokens store, of ``shape`` [b, t, *shape]."""

    value: ir.Value
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Deferred:
    """y, the stored values of the tokens, and the shape of a row's state in both graphs.

    weights: numbers of the model that an advance needs, too.
    """

    y: ir.Value
    stored: tuple[Stored, ...]
    state_shape: tuple[int, ...]
    weights: tuple[np.ndarray, ...] = ()


# (dense node of rows with equally many tokens, inserter, kernels, tokens) -> its replacement, or None if there
# is none. tokens: of each row, None for a number that is an input of the graph.
ReplayBody = Callable[[ir.Node, Inserter, Kernels, "int | None"], "Deferred | None"]
# (inserter, kernels, stored values [b, t, ...] and then weights, states of the rows, which tokens count) -> the states
# after these.
AdvanceBody = Callable[[Inserter, Kernels, "list[ir.Value]", ir.Value, "Accepted"], ir.Value]


@dataclass(frozen=True)
class Accepted:
    """The tokens by which rows advance: the first ``counts`` [b] int64 of each, of ``time`` [1] int64.

    The stored values of the others are zeros.
    """

    counts: ir.Value
    time: ir.Value

    def window(self, insert: Inserter, width: int) -> ir.Value:
        """[b, width] indices into b * (width + t) columns: of each row, ``width`` up to the last accepted token."""
        rows = insert.op("Squeeze", insert.op("Shape", self.counts))
        number = insert.op("Range", insert.scalar(0), rows, insert.scalar(1))
        start = insert.op("Mul", number, insert.op("Add", self.time, insert.ints(width)))
        first = insert.op("Unsqueeze", insert.op("Add", start, self.counts), insert.ints(1))
        index: ir.Value = insert.op("Add", first, insert.ints(*range(width)))
        return index
