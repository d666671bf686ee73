"""Padding of rows of unequal length, which must not affect states."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hybridge.artifact.names import INPUT_IDS
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter


def without_padding(insert: Inserter, value: ir.Value, context_lengths: ir.Value) -> ir.Value:
    """``value`` [batch, seq, width] with zeros where a row has no token: from its context length on."""
    # Equal in every layer, so that ONNX Runtime computes it once.
    tokens = next((graph_input for graph_input in insert.graph.inputs if graph_input.name == INPUT_IDS), None)
    time = insert.op("Squeeze", insert.size(value, 1) if tokens is None else insert.op("Shape", tokens, start=-1))
    position = insert.op("Range", insert.scalar(0), time, insert.scalar(1))
    length = insert.op("Unsqueeze", insert.op("Cast", context_lengths, to=int(ir.DataType.INT64)), insert.ints(1))
    is_token = insert.op("Unsqueeze", insert.op("Less", position, length), insert.ints(2))
    return insert.op("Where", is_token, value, insert.constant(np.zeros((), np.float32)))


def last_columns(insert: Inserter, stacked: ir.Value, context_lengths: ir.Value, channels: int, count: int) -> ir.Value:
    """[batch, channels, count]: of ``stacked`` [batch, channels, count + seq] the columns in front of the padding."""
    length = insert.op("Unsqueeze", insert.op("Cast", context_lengths, to=int(ir.DataType.INT64)), insert.ints(1, 2))
    columns = insert.constant(np.broadcast_to(np.arange(count), (channels, count)))
    return insert.op("GatherElements", stacked, insert.op("Add", length, columns), axis=2)
