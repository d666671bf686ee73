"""The packed form of an operator, version 2 of the domain, from its dense declaration."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import OPTIONAL_MARK, OpSpec, TensorSpec
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS

PACKED_VERSION = 2
"""Opset version of the domain ``trt_edgellm``, and version of the plugins, of packed operators."""

TOKENS, ROWS, ROW_BOUNDS, NUM_SLOTS = "tokens", "rows", "row_bounds", "num_slots"

QUERY_START_LOC = TensorSpec(
    "query_start_loc",
    DType.INT32,
    (ROW_BOUNDS,),
    "rows + 1 numbers, from 0, never falling: row r has the tokens query_start_loc[r] to query_start_loc[r + 1] - 1",
)
STATE_INDICES = TensorSpec(
    "state_indices",
    DType.INT32,
    (ROWS,),
    "slot of each row in the pools, every slot at most once; -1: a padding row, which touches no state and whose "
    "outputs are unspecified",
)


def packed_form(dense: OpSpec) -> OpSpec:
    """``dense`` over packed rows: tokens [tokens, ...] of all rows one after another, states [num_slots, ...].

    query_start_loc and state_indices take the place of context_lengths; all else is as in the dense form, which is
    the packed one with rows of equal length and slot r for row r. An operator without rows (every token on its own)
    is its own packed form: without a token axis, its batch axis may as well count tokens.
    """
    if CONTEXT_LENGTHS not in dense.inputs:
        return dense
    inputs: list[TensorSpec] = []
    for tensor in dense.inputs:
        inputs += (QUERY_START_LOC, STATE_INDICES) if tensor == CONTEXT_LENGTHS else (_packed(tensor),)
    outputs = tuple(_packed(tensor) for tensor in dense.outputs)
    doc = f"{dense.doc} Rows are packed: query_start_loc says where each begins, state_indices which slot it has."
    return replace(dense, doc=doc, inputs=tuple(inputs), outputs=outputs, version=PACKED_VERSION)


def has_rows(spec: OpSpec) -> bool:
    """Whether ``spec`` is packed and cares which row a token belongs to."""
    return QUERY_START_LOC in spec.inputs


def is_packed(tensor: TensorSpec) -> bool:
    """Whether the tensor's first axis counts the tokens of all rows."""
    return tensor.dims[:1] == (TOKENS,)


def is_pool(tensor: TensorSpec) -> bool:
    """Whether the tensor is a pool of recurrent states, one slot for each entry of its first axis."""
    return tensor.dims[:1] == (NUM_SLOTS,)


def _packed(tensor: TensorSpec) -> TensorSpec:
    if tensor.dims[0] != "batch":
        return tensor
    if f"time{OPTIONAL_MARK}" not in tensor.dims:
        return replace(tensor, dims=(NUM_SLOTS, *tensor.dims[1:]), doc=f"pool: {tensor.doc}")
    doc = tensor.doc.removesuffix(", right-padded").replace("zero at tokens past context_lengths", "one per token")
    return replace(tensor, dims=(TOKENS, *tensor.dims[2:]), doc=doc)
