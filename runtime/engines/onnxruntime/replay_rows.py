"""The tokens of rows as matrices of every head, and the decays between them.

Letters in shapes: b rows, t tokens of each, g groups (key heads), r heads of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.engine_inputs import (
    DECAY_AFTER,
    DECAY_SUMS,
    MOST_REPLAYED,
    decay_after,
    decay_sums,
)
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input


@dataclass(frozen=True)
class TokenRows:
    """``count`` tokens of each row, None for a number that is an input of the graph."""

    insert: Inserter
    count: int | None
    groups: int
    heads: int

    @property
    def most(self) -> int:
        """Maximum tokens of a row."""
        return self.count or MOST_REPLAYED

    def decays(self, log_decay: ir.Value) -> tuple[ir.Value, ir.Value]:
        """exp(sum of log_decay [b, t, g * r] over the tokens j + 1 to i) [b, g, r, i, j], 0 where j > i.

        And from before the first token to i: [b, g, r, i, 1].
        """
        insert = self.insert
        if self.count is None:
            sums = add_input(insert.graph, DECAY_SUMS, ir.DataType.FLOAT, ["decay_tokens", "decay_pairs"])
            after = add_input(insert.graph, DECAY_AFTER, ir.DataType.FLOAT, ["decay_tokens", "decay_columns"])
            shape = insert.shape(-1, self.groups, self.heads, insert.op("Shape", after))
            parts = insert.shape(1, insert.size(after, 0))
        else:
            sums, after = insert.constant(decay_sums(self.count)), insert.constant(decay_after(self.count))
            shape = insert.ints(-1, self.groups, self.heads, self.count, self.count + 1)
            parts = insert.ints(1, self.count)
        by_head = insert.op("Transpose", log_decay, perm=[0, 2, 1])
        between = insert.op("Reshape", insert.op("MatMul", by_head, sums), shape)
        between = insert.op("Exp", insert.op("Add", between, after))
        from_start, between = insert.op("Split", between, parts, outputs=2, axis=4)
        return between, from_start

    def states(self, value: ir.Value, rows: int, columns: int) -> ir.Value:
        """[b, g * r, rows, columns] as [b, g, r, rows, columns]."""
        return self.insert.reshape(value, 0, self.groups, self.heads, rows, columns)

    def by_head(self, value: ir.Value, width: int) -> ir.Value:
        """[b, t, g * r * width] as [b, g, r, t, width]."""
        split = self.insert.reshape(value, 0, 0, self.groups, self.heads, width)
        matrices: ir.Value = self.insert.op("Transpose", split, perm=[0, 2, 3, 1, 4])
        return matrices

    def by_group(self, value: ir.Value, width: int) -> ir.Value:
        """[b, t, g * width] as [b, g, 1, t, width]."""
        split = self.insert.reshape(value, 0, 0, self.groups, 1, width)
        matrices: ir.Value = self.insert.op("Transpose", split, perm=[0, 2, 3, 1, 4])
        return matrices

    def tokens(self, matrices: ir.Value, width: int) -> ir.Value:
        """[b, g, r, t, width] as [b, t, g * r * width]."""
        back = self.insert.op("Transpose", matrices, perm=[0, 3, 1, 2, 4])
        return self.insert.reshape(back, 0, 0, self.groups * self.heads * width)
