"""Steps with candidate tokens: which slots their rows read and write, and other steps in their form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs


def read_slots(inputs: PackedInputs) -> np.ndarray:
    """The slot [rows] of the state that each row begins with, of a step with candidate tokens; -1 of padding rows."""
    assert inputs.num_accepted_tokens is not None
    columns = np.clip(inputs.num_accepted_tokens, 1, inputs.state_indices.shape[1]) - 1
    slots: np.ndarray = inputs.state_indices[np.arange(len(columns)), columns]
    return slots


def with_candidates(inputs: PackedInputs, columns: int) -> PackedInputs:
    """A step without candidate tokens as one with ``columns`` slots a row, of which each row keeps its last state."""
    rows = len(inputs.seq_lens)
    counts = np.clip(np.diff(inputs.query_start_loc), 1, columns).astype(np.int32)
    table = np.full((rows, columns), -1, np.int32)
    table[np.arange(rows), counts - 1] = inputs.state_indices
    return replace(inputs, state_indices=table, num_accepted_tokens=counts)
