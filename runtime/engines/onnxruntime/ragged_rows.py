"""Rows of a few tokens each that share one run: packed for operators on single tokens, padded for all others.

Matrix products, norms and experts read the packed tokens, without padding. Recurrent operators and attention gather
them as [rows, time, ...]; a row with fewer tokens than ``time`` repeats its last one, which no other token of the row
reads, and these results are dropped when the tokens are packed again.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.paged import ROWS, TOKENS
from hybridge.runtime.engines.onnxruntime.engine_inputs import PLACE_OF_TOKEN, TOKEN_OF_PLACE
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input


def rows_from_tokens(insert: Inserter, value: ir.Value) -> ir.Value:
    """``value`` [tokens, ...] as [rows, time, ...]."""
    index = add_input(insert.graph, TOKEN_OF_PLACE, ir.DataType.INT64, [ROWS, SEQ])
    rows: ir.Value = insert.op("Gather", value, index, axis=0)
    rows.type = value.type
    rows.shape = None if value.shape is None else ir.Shape([ROWS, SEQ, *value.shape.dims[1:]])
    return rows


def tokens_from_rows(insert: Inserter, rectangle: ir.Value) -> ir.Value:
    """``rectangle`` [rows * time, ...] as [tokens, ...]."""
    index = add_input(insert.graph, PLACE_OF_TOKEN, ir.DataType.INT64, [TOKENS])
    tokens: ir.Value = insert.op("Gather", rectangle, index, axis=0)
    return tokens
