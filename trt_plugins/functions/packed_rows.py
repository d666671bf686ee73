"""Packed rows inside a function body: right-padded to the longest row, and back, without a loop.

The declaration knows no padding; this is how standard operators get at rows of any length. A padding row counts as a
row without tokens.
"""

from __future__ import annotations

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions.nodes import Nodes
from hybridge.trt_plugins.specs.speculative import is_speculative

_TO_END = int(np.iinfo(np.int64).max)
STARTS, SLOTS, SEQ_LENS = "query_start_loc", "state_indices", "seq_lens"
ACCEPTED = "num_accepted_tokens"


def row_lengths(body: Nodes) -> str:
    """New tokens of each row, 0 for padding rows: int64 [rows]."""
    lengths = body.op("Sub", _ends(body), _starts(body))
    names = [tensor.name for tensor in body.signature.spec.inputs]
    if SLOTS in names:
        taking_part = body.op("GreaterOrEqual", slots(body), body.constant(0))
    else:
        taking_part = body.op("Greater", integers(body, SEQ_LENS), body.constant(0))
    return body.op("Where", taking_part, lengths, body.constant(0))


def longest_row(body: Nodes) -> str:
    """Tokens of the longest row, at least 1: int64 [1]."""
    return body.op("Max", body.op("ReduceMax", row_lengths(body), keepdims=1), body.constant([1]))


def padded(body: Nodes, tokens: str) -> str:
    """[tokens, ...] as [rows, longest, ...]; padding holds tokens of other rows."""
    index = body.op("Add", body.unsqueeze(_starts(body), 1), body.range(longest_row(body)))
    last = body.op("Sub", body.size(tokens, 0), body.constant([1]))
    return body.op("Gather", tokens, body.op("Min", index, last), axis=0)


def unpadded(body: Nodes, rows: str) -> str:
    """[rows, longest, ...] as [tokens, ...]; a token of no row gets one of another."""
    tokens = next(t.name for t in body.signature.spec.inputs if t.dims[0] == "tokens")
    index = body.range(body.size(tokens, 0))
    begun = body.op("GreaterOrEqual", body.unsqueeze(index, 1), _ends(body))  # [tokens, rows]
    row = body.op("ReduceSum", body.op("Cast", begun, to=DType.INT64.onnx), body.constant([1]), keepdims=0)
    row = body.op("Min", row, body.op("Sub", body.size(rows, 0), body.constant([1])))
    offset = body.op("Sub", index, body.op("Gather", _starts(body), row, axis=0))
    offset = body.op("Min", offset, body.op("Sub", body.size(rows, 1), body.constant([1])))
    return body.op("GatherND", rows, body.concat(body.unsqueeze(row, 1), body.unsqueeze(offset, 1), axis=1))


def slots(body: Nodes) -> str:
    """The slot whose state each row begins with, negative for padding rows: int64 [rows]."""
    if not is_speculative(body.signature.spec):
        return integers(body, SLOTS)
    one = body.constant([1])
    accepted = body.op("Max", body.op("Min", integers(body, ACCEPTED), _slots_per_row(body)), one)
    column = body.unsqueeze(body.op("Sub", accepted, one), 1)
    return body.op("GatherND", integers(body, SLOTS), column, batch_dims=1)


def gathered(body: Nodes, pool: str) -> str:
    """The state of each row, [rows, ...] of [num_slots, ...]; that of slot 0 for padding rows."""
    return body.op("Gather", pool, body.op("Max", slots(body), body.constant(0)), axis=0)


def scattered(body: Nodes, pool: str, rows: str) -> str:
    """``pool`` with ``rows`` [rows, ...] in the slots that they begin with."""
    rank = len(body.signature.input(pool).dims)
    return placed(body, pool, [slots(body)], rows, rank)


def stored_count(body: Nodes) -> str:
    """Tokens of a row after which states are kept, in this step: int64 [1]."""
    return body.op("Min", longest_row(body), _slots_per_row(body))


def scattered_states(body: Nodes, pool: str, states: str, last: str, before: str = "") -> str:
    """``pool`` with the states after every draft token, and the last ones of rows of more tokens.

    states [rows, stored_count, ...], last [rows, ...]. before: a value of the pool's shape instead of it.
    """
    lengths, count, rank = row_lengths(body), stored_count(body), len(body.signature.input(pool).dims)
    many = body.op("Greater", lengths, _slots_per_row(body))
    stored = body.op("Where", many, body.constant(0), lengths)
    columns = body.slice(integers(body, SLOTS), 1, body.constant([0]), count)
    inside = body.op("Less", body.range(count), body.unsqueeze(stored, 1))
    nowhere = body.constant(-1)
    minus = body.constant([-1])
    targets = body.reshape(body.op("Where", inside, columns, nowhere), minus)
    targets = body.concat(targets, body.op("Where", many, slots(body), nowhere))
    entries = body.concat(body.reshape(states, minus, body.size(last, 1, rank)), last)
    return placed(body, before or pool, [targets], entries, rank)


def placed(body: Nodes, pool: str, targets: list[str], entries: str, rank: int) -> str:
    """``pool`` with entry i of ``entries`` at ``targets``[0][i], ``targets``[1][i], ...

    None where the last is negative.
    targets: int64 [count] for each leading axis of the pool; entries [count, ...] of ``rank`` axes. An entry without a
    target repeats the first one that has a target, so that no shape depends on how many have one; where none has, the
    first entry of the pool is written with itself.
    """
    given = body.op("GreaterOrEqual", targets[-1], body.constant(0))
    # TensorRT's ArgMax takes two axes at least.
    row = body.unsqueeze(body.op("Cast", given, to=DType.INT32.onnx), 0)
    first = body.op("Squeeze", body.op("ArgMax", row, axis=1, keepdims=1), body.constant([0]))  # [1]
    some = body.op("Gather", given, first, axis=0)  # [1]
    index = []
    for target in targets:
        default = body.op("Where", some, body.op("Gather", target, first, axis=0), body.constant([0]))
        index.append(body.unsqueeze(body.op("Where", given, target, default), 1))
    later_axes = range(1, rank)
    there = body.op("GatherND", pool, body.constant([[0] * len(targets)]))
    entry = body.op("Where", body.unsqueeze(some, *later_axes), body.op("Gather", entries, first, axis=0), there)
    chosen = body.op("Where", body.unsqueeze(given, *later_axes), entries, entry)
    return body.op("ScatterND", pool, index[0] if len(index) == 1 else body.concat(*index, axis=1), chosen)


def integers(body: Nodes, name: str) -> str:
    """The int32 input ``name`` as int64."""
    return body.op("Cast", name, to=DType.INT64.onnx)


def _slots_per_row(body: Nodes) -> str:
    return body.size(SLOTS, 1)


def _starts(body: Nodes) -> str:
    return body.slice(integers(body, STARTS), 0, body.constant([0]), body.constant([-1]))


def _ends(body: Nodes) -> str:
    return body.slice(integers(body, STARTS), 0, body.constant([1]), body.constant([_TO_END]))
