"""A step with candidate tokens as runs of the engine, whose graphs have one slot a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hybridge.runtime.engines.candidates import read_slots
from hybridge.runtime.engines.paged import PackedInputs


@dataclass(frozen=True)
class CandidateStep:
    """inputs: the step with one slot a row, state_indices [rows]. sources, targets: slots to copy before it runs.

    kept: of each row that keeps more states than its last one, or none, the slots after each token. Such a row runs
    alone.
    """

    inputs: PackedInputs
    sources: np.ndarray
    targets: np.ndarray
    kept: Mapping[int, tuple[int, ...]]


def candidate_step(inputs: PackedInputs, nowhere: int) -> CandidateStep:
    """What a step with candidate tokens is; states that nobody wants go to slot ``nowhere``.

    A row of one token runs in the slot that keeps its state, to which the state that it begins with is copied.
    """
    table, counts = inputs.state_indices, np.diff(inputs.query_start_loc)
    reads = read_slots(inputs)
    single = (counts == 1) & (reads >= 0) & (table[:, 0] >= 0)
    kept_rows = np.flatnonzero((counts <= table.shape[1]) & (reads >= 0) & ~single)
    slots = np.where(single, table[:, 0], reads).astype(np.int32)
    moved = slots != reads
    plain = replace(inputs, state_indices=slots, num_accepted_tokens=None)
    written = np.where(table < 0, nowhere, table)
    kept = {row: tuple(written[row, : counts[row]].tolist()) for row in kept_rows.tolist()}
    return CandidateStep(plain, reads[moved], slots[moved], kept)


def candidate_output(present: str, index: int) -> str:
    """Graph output of the state after candidate token ``index``, of the states whose last one is ``present``."""
    return f"{present}.after_{index}"
