"""The arrays of a step that holds states, in the form of one with candidate tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.advance_step import HeldRows


@dataclass(frozen=True, eq=False)
class HeldInputs(PackedInputs):
    """kept_state_indices [rows, columns] int32: state_indices for the operators whose states are kept after each token.

    held_tokens int32: the tokens whose inputs are kept; None: all, as no row has more of them than slots.
    """

    kept_state_indices: np.ndarray | None = None
    held_tokens: np.ndarray | None = None


def held_inputs(inputs: PackedInputs, most: int, first_kept: int) -> tuple[HeldInputs, HeldRows]:
    """``inputs``, whose held rows have at most ``most`` tokens, and these rows.

    In the form of a step with candidates, of most + 1 slots a row: a held row begins with the state in its last column,
    which no token of the row writes, the others are as in ``with_candidates``. The state after token j of the i-th held
    row is kept in slot ``first_kept`` + i * most + j.
    """
    assert inputs.held is not None
    columns = most + 1
    bounds, slots, rows = inputs.query_start_loc, inputs.state_indices, np.flatnonzero(inputs.held)
    counts = bounds[1:] - bounds[:-1]
    own, begins = counts[rows], bounds[rows]
    accepted = np.minimum(counts, columns).astype(np.int32)
    accepted[rows] = columns
    table = np.full((len(counts), columns), -1, np.int32)
    table[np.arange(len(counts)), accepted - 1] = slots
    kept = table.copy()
    kept[rows, :most] = np.where(
        np.arange(most) < own[:, None], first_kept + np.arange(len(rows) * most).reshape(-1, most), -1
    )
    chosen = None
    starts = begins
    if len(inputs.input_ids) > columns and counts.max() > columns:
        chosen = np.concatenate([np.arange(begin, begin + n) for begin, n in zip(begins, own, strict=True)])
        starts = np.cumsum(own) - own
    step = HeldInputs(
        inputs.input_ids,
        inputs.positions,
        bounds,
        inputs.seq_lens,
        inputs.block_table,
        inputs.slot_mapping,
        table,
        inputs.logits_indices,
        accepted,
        inputs.held,
        kept,
        chosen,
    )
    return step, HeldRows(rows, starts, own, slots[rows])
