"""A step with candidate tokens as runs of the engine, whose graphs have one slot a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from artifact import names
from runtime.engines.candidates import read_slots
from runtime.engines.onnxruntime.paged_feeds import PagedRun
from runtime.engines.paged import PackedInputs

READ_SLOT = "engine.read_slot"
"""Graph input of a run of candidate tokens: the slot [1] that its row begins with; state_indices [tokens] are those of
the states after each token."""


@dataclass(frozen=True)
class CandidateStep:
    """inputs: the step with one slot a row, state_indices [rows]. sources, targets: slots to copy before it runs.

    kept: of each row that keeps more states than its last one, or none, the slots after each token, -1: nowhere. Such a
    row runs alone.
    """

    inputs: PackedInputs
    sources: np.ndarray
    targets: np.ndarray
    kept: Mapping[int, np.ndarray]


def candidate_step(inputs: PackedInputs) -> CandidateStep:
    """What a step with candidate tokens is.

    A row of one token runs in the slot that keeps its state, to which the state that it begins with is copied.
    """
    table, counts = inputs.state_indices, np.diff(inputs.query_start_loc)
    reads = read_slots(inputs)
    single = (counts == 1) & (reads >= 0) & (table[:, 0] >= 0)
    kept_rows = np.flatnonzero((counts <= table.shape[1]) & (reads >= 0) & ~single)
    slots = np.where(single, table[:, 0], reads).astype(np.int32)
    moved = slots != reads
    plain = replace(inputs, state_indices=slots, num_accepted_tokens=None)
    return CandidateStep(plain, reads[moved], slots[moved], {int(row): table[row, : counts[row]] for row in kept_rows})


def candidate_feeds(run: PagedRun, inputs: PackedInputs, kept: np.ndarray, num_slots: int) -> dict[str, np.ndarray]:
    """What a run of candidate tokens reads in place of its row's slot; states that nobody keeps go to ``num_slots``."""
    return {
        names.STATE_INDICES: np.where(kept < 0, num_slots, kept).astype(np.int32),
        READ_SLOT: inputs.state_indices[run.rows].astype(np.int32),
    }
