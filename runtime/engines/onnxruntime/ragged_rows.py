"""Rows of a few tokens each that share one run: packed where tokens do not meet, a rectangle of rows where they do.

Matrix products, norms and experts see the packed tokens, none of which fills up a row. Recurrent operators and
attention gather them as [rows, time, ...]; a row with fewer tokens than ``time`` repeats its last one at the end, which
no other token of it reads, and what comes of that is dropped when the tokens are packed again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.paged import ROWS, TOKENS
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, add_input

# Graph inputs: the packed token at each place of the rectangle, and the place, row * time + index, of each token.
_TOKEN_OF_PLACE, _PLACE_OF_TOKEN = "engine.token_of_place", "engine.place_of_token"


def rows_from_tokens(insert: Inserter, value: ir.Value) -> ir.Value:
    """``value`` [tokens, ...] as [rows, time, ...]."""
    index = add_input(insert.graph, _TOKEN_OF_PLACE, ir.DataType.INT64, [ROWS, SEQ])
    rows: ir.Value = insert.op("Gather", value, index, axis=0)
    rows.type = value.type
    rows.shape = None if value.shape is None else ir.Shape([ROWS, SEQ, *value.shape.dims[1:]])
    return rows


def tokens_from_rows(insert: Inserter, rectangle: ir.Value) -> ir.Value:
    """``rectangle`` [rows * time, ...] as [tokens, ...]."""
    index = add_input(insert.graph, _PLACE_OF_TOKEN, ir.DataType.INT64, [TOKENS])
    tokens: ir.Value = insert.op("Gather", rectangle, index, axis=0)
    return tokens


def ragged_feeds(counts: np.ndarray) -> dict[str, np.ndarray]:
    """What graphs of rows of ``counts`` [rows] tokens read of how they lie."""
    index = np.arange(counts.max())
    starts = np.cumsum(counts) - counts
    inside = index < counts[:, None]
    return {
        _TOKEN_OF_PLACE: starts[:, None] + np.minimum(index, counts[:, None] - 1),
        _PLACE_OF_TOKEN: np.flatnonzero(inside),
    }
