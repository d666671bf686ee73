"""The arrays of a step with draft tokens, in the form that the speculative operators take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.rollback import DeferredRows, SnapshotSlots


@dataclass(frozen=True, eq=False)
class DraftInputs(PackedInputs):
    """A row begins with the state in the last column of its slots that is not -1, num_accepted_tokens [rows] int32.

    snapshot_slots [rows, columns] int32: state_indices for the operators with a snapshot after each token.
    stored_tokens int32: the tokens whose inputs are stored; None: all, as no row has more of them than slots.
    """

    num_accepted_tokens: np.ndarray | None = None
    snapshot_slots: np.ndarray | None = None
    stored_tokens: np.ndarray | None = None


@dataclass(frozen=True)
class StoredRows:
    """The deferred rows of a step, and the first of the stored tokens of each, ``starts`` [n]."""

    deferred: DeferredRows
    starts: np.ndarray


def draft_inputs(inputs: PackedInputs, most: int, snapshots: SnapshotSlots) -> tuple[DraftInputs, StoredRows]:
    """``inputs``, whose deferred rows (there may be none) have at most ``most`` tokens, and these rows.

    Each row has most + 1 slots. A deferred row begins with the state in its last column, which no token of the row
    writes. The other rows write their last state over the one that they begin with.
    """
    assert inputs.deferred is not None
    columns = most + 1
    bounds, slots, rows = inputs.query_start_loc, inputs.state_indices, np.flatnonzero(inputs.deferred)
    counts = bounds[1:] - bounds[:-1]
    own, begins = counts[rows], bounds[rows]
    accepted = np.minimum(counts, columns).astype(np.int32)
    accepted[rows] = columns
    table = np.full((len(counts), columns), -1, np.int32)
    table[np.arange(len(counts)), accepted - 1] = slots
    with_snapshots = table.copy()
    with_snapshots[rows, :most] = snapshots.table(own)
    chosen = None
    starts = begins
    if len(inputs.input_ids) > columns and counts.max() > columns:
        chosen = np.array([t for begin, n in zip(begins, own, strict=True) for t in range(begin, begin + n)], np.int64)
        starts = np.cumsum(own) - own
    step = DraftInputs(
        inputs.input_ids,
        inputs.positions,
        bounds,
        inputs.seq_lens,
        inputs.block_table,
        inputs.slot_mapping,
        table,
        inputs.logits_indices,
        inputs.deferred,
        inputs.checkpoints,
        num_accepted_tokens=accepted,
        snapshot_slots=with_snapshots,
        stored_tokens=chosen,
    )
    deferred = DeferredRows(len(counts), rows, own, slots[rows], snapshots=snapshots)
    return step, StoredRows(deferred, starts)
