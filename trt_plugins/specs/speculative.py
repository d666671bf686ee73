"""The speculative form of an operator, version 3 of the domain, from its packed declaration."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import OpSpec, TensorSpec
from hybridge.trt_plugins.specs.packed import ROWS, STATE_INDICES

SPECULATIVE_VERSION = 3
"""Opset version of the domain ``trt_edgellm``, and version of the plugins, of speculative operators."""

DRAFTS = "draft_slots"

DRAFT_SLOTS = TensorSpec(
    STATE_INDICES.name,
    DType.INT32,
    (ROWS, DRAFTS),
    "slots of each row in the pools, no slot in two rows or twice in a row. The state before a row's first token is "
    "that of slot state_indices[r, num_accepted_tokens[r] - 1], which is read before anything is written; -1 there: a "
    "padding row, which touches no state and whose outputs are unspecified. A row of at most `draft_slots` tokens "
    "writes the state after its token j to slot state_indices[r, j], -1: nowhere. A longer row writes its last state "
    "over the one that it read",
)
NUM_ACCEPTED_TOKENS = TensorSpec(
    "num_accepted_tokens",
    DType.INT32,
    (ROWS,),
    "tokens of the row's last call that were accepted, clamped to 1..draft_slots; 1 in a row's first call",
)


def speculative_form(packed: OpSpec) -> OpSpec:
    """``packed`` with a state for every draft token, so that any number of them may be accepted afterwards.

    All else is as in the packed form, which is this one with a single column. An operator without pools of states is
    its own speculative form.
    """
    if STATE_INDICES not in packed.inputs:
        return packed
    inputs: list[TensorSpec] = []
    for tensor in packed.inputs:
        inputs += (DRAFT_SLOTS, NUM_ACCEPTED_TOKENS) if tensor == STATE_INDICES else (tensor,)
    doc = f"{packed.doc} The state after each draft token of a row has its own slot."
    return replace(packed, doc=doc, inputs=tuple(inputs), version=SPECULATIVE_VERSION)


def is_speculative(spec: OpSpec) -> bool:
    """Whether ``spec`` keeps a state for every draft token."""
    return NUM_ACCEPTED_TOKENS in spec.inputs
