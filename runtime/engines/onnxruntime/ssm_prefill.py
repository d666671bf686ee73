"""Many tokens of Mamba2's state update as matrix products over chunks (arXiv 2405.21060, section 6).

Tokens are cut into the fewest chunks of at most ``CHUNK``, of equal length. Shapes: b batch, g groups, r heads of a
group, c chunks, q tokens of a chunk, p head_dim, n state_size; i is the reading and j the writing token of a chunk.
A decay from j to i is the exponential of a sum that starts after j. Such sums are products with a triangle of
ones: no two long sums are subtracted, so the error does not grow with the length.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hybridge.artifact.names import INPUT_IDS
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter
from hybridge.runtime.engines.onnxruntime.ssm_inputs import SsmInputs

CHUNK = 64


def chunked_scan(insert: Inserter, inputs: SsmInputs) -> tuple[ir.Value, ir.Value]:
    """y [batch, seq, heads * head_dim] without the skip connection, and the new state [b, heads, n, p]."""
    scan = _Scan(insert, inputs)
    written = insert.op("MatMul", scan.keys, insert.op("Mul", scan.values, scan.decay_to_end()))
    before, last = _states(insert, inputs, scan, written)
    scores = insert.op("Mul", insert.op("MatMul", scan.queries, scan.keys), scan.triangle)
    weights = insert.op("Mul", scan.decay_between(), scores)
    inside = insert.op("MatMul", weights, scan.values)
    carried = insert.op("Mul", insert.op("MatMul", scan.queries, before), scan.decay_from_start())
    y = insert.op("Transpose", insert.op("Add", inside, carried), perm=[0, 3, 4, 1, 2, 5])
    y = insert.op("Reshape", y, insert.shape(scan.batch, -1, inputs.heads * inputs.head_dim))
    return insert.op("Slice", y, insert.ints(0), scan.time, insert.ints(1)), last


class _Scan:
    """The chunked inputs.

    values [b, g, r, c, q, p] are d * x; keys [b, g, 1, c, n, q] are B; queries [b, g, 1, c, q, n] are C;
    log_decay [b, g, r, c, q, 1]; triangle [q, q] is 1 where j <= i.
    """

    def __init__(self, insert: Inserter, inputs: SsmInputs) -> None:
        self._insert = insert
        # Sizes from a common source let ONNX Runtime share the arithmetic between the layers.
        tokens = insert.input_or(INPUT_IDS, inputs.scaled)
        if len(tokens.shape or ()) != 2:  # packed: its rows are not the graph's
            tokens = inputs.scaled
        self.batch, self.time = insert.size(tokens, 0), insert.size(tokens, 1)
        self.count = self._quotient(self.time, insert.ints(CHUNK))
        self.length = self._quotient(self.time, self.count)
        missing = insert.op("Sub", insert.op("Mul", self.count, self.length), self.time)
        self._padding = insert.op("Concat", insert.ints(0), missing, axis=0)
        self._lead = (self.batch, self.count, self.length, inputs.groups)
        self.values = self._chunked(inputs.scaled, inputs.heads_per_group, inputs.head_dim, [0, 3, 4, 1, 2, 5])
        self.keys = self._chunked(inputs.B, 1, inputs.state_size, [0, 3, 4, 1, 5, 2])
        self.queries = self._chunked(inputs.C, 1, inputs.state_size, [0, 3, 4, 1, 2, 5])
        self.log_decay = self._chunked(inputs.log_decay, inputs.heads_per_group, 1, [0, 3, 4, 1, 2, 5])
        self.triangle = self._ones(np.tril(np.ones((CHUNK, CHUNK), np.float32)))

    def decay_between(self) -> ir.Value:
        """From the end of token j to the end of token i: [b, g, r, c, i, j]; 1 where j > i."""
        later = self._ones(np.tril(np.ones((CHUNK, CHUNK), np.float32), -1))
        terms = self._insert.op("Mul", self.log_decay, later)
        return self._insert.op("Exp", self._insert.op("MatMul", self.triangle, terms))

    def decay_from_start(self) -> ir.Value:
        """From before the chunk to the end of token i: [b, g, r, c, i, 1]."""
        return self._insert.op("Exp", self._insert.op("MatMul", self.triangle, self.log_decay))

    def decay_to_end(self) -> ir.Value:
        """From the end of token j to the end of the chunk: [b, g, r, c, j, 1]."""
        later = self._ones(np.triu(np.ones((CHUNK, CHUNK), np.float32), 1))
        return self._insert.op("Exp", self._insert.op("MatMul", later, self.log_decay))

    def _chunked(self, tensor: ir.Value, heads: int, width: int, order: list[int]) -> ir.Value:
        """[b, t, ...] as [b, c, q, g, heads, width] in ``order``, zeros after the last token."""
        padded = self._insert.op("Pad", tensor, self._padding, None, self._insert.ints(1))
        split = self._insert.op("Reshape", padded, self._insert.shape(*self._lead, heads, width))
        return self._insert.op("Transpose", split, perm=order)

    def _ones(self, pattern: np.ndarray) -> ir.Value:
        """The first rows and columns of a constant [CHUNK, CHUNK]."""
        end = self._insert.op("Concat", self.length, self.length, axis=0)
        return self._insert.op("Slice", self._insert.constant(pattern), self._insert.ints(0, 0), end)

    def _quotient(self, dividend: ir.Value, divisor: ir.Value) -> ir.Value:
        """The quotient, rounded up."""
        rounded = self._insert.op("Sub", self._insert.op("Add", dividend, divisor), self._insert.ints(1))
        return self._insert.op("Div", rounded, divisor)


def _states(insert: Inserter, inputs: SsmInputs, scan: _Scan, written: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The state before each chunk [b, g, r, c, n, p] and after the last one [b, h, n, p].

    ``written`` [b, g, r, c, n, p] is the contribution of each chunk alone. With the initial state in front, one
    matrix [z, w] of the decay over chunks w to z - 1 gives the state before every chunk z.
    """
    sizes = (inputs.state_size, inputs.head_dim)
    heads = (scan.batch, inputs.groups, inputs.heads_per_group)
    first = insert.op("Reshape", inputs.state, insert.shape(*heads, 1, sizes[0] * sizes[1]))
    flat = insert.op("Reshape", written, insert.shape(*heads, -1, sizes[0] * sizes[1]))
    totals = insert.op("ReduceSum", scan.log_decay, insert.ints(4), keepdims=0)  # [b, g, r, c, 1]
    row = insert.op("Range", insert.scalar(0), insert.op("Squeeze", scan.count), insert.scalar(1))
    row = insert.op("Unsqueeze", row, insert.ints(1))
    next_row = insert.op("Add", row, insert.ints(1))
    column = insert.op("Transpose", next_row, perm=[1, 0])
    # Terms [k, w]: chunk k decays what was written by chunk w when k > w. The triangle sums k up to z.
    terms = insert.op("Mul", totals, _as_float(insert, insert.op("GreaterOrEqual", row, column)))
    triangle = _as_float(insert, insert.op("GreaterOrEqual", next_row, column))
    between = insert.op("Mul", insert.op("Exp", insert.op("MatMul", triangle, terms)), triangle)
    from_first = insert.op("Exp", insert.op("MatMul", triangle, totals))
    after = insert.op("Add", insert.op("MatMul", between, flat), insert.op("Mul", from_first, first))
    # One tensor of all states: the last one is written only after every reader of the first has run.
    states = insert.op("Concat", first, after, axis=3)
    end = insert.ints(np.iinfo(np.int64).max)
    before = insert.op("Slice", states, insert.ints(0), insert.ints(-1), insert.ints(3))
    last = insert.op("Slice", states, insert.ints(-1), end, insert.ints(3))
    return (
        insert.op("Reshape", before, insert.shape(*heads, -1, *sizes)),
        insert.op("Reshape", last, insert.shape(scan.batch, inputs.heads, *sizes)),
    )


def _as_float(insert: Inserter, value: ir.Value) -> ir.Value:
    return insert.op("Cast", value, to=int(ir.DataType.FLOAT))
