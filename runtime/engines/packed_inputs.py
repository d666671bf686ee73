"""The arrays of one step of a paged engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """One step. All arrays are C-contiguous, belong to the caller and may change once the step has returned.

    input_ids [tokens] int64        new tokens of row 0, then of row 1, ...
    positions [tokens] int64        position of each new token in its sequence, from 0
    query_start_loc [rows + 1] int32  row r has the tokens query_start_loc[r] to query_start_loc[r + 1] - 1, at least 1
    seq_lens [rows] int32           tokens of each row in the cache after this step; 0: a padding row
    block_table [rows, max_blocks] int32  block of positions i * block_size and on; -1: read by no token of the row
    slot_mapping [tokens] int32     block * block_size + offset where each token's KV is stored, none twice; -1: nowhere
    state_indices [rows] int32      slot of each row, none twice; -1: a padding row, or a model without recurrent states
    logits_indices [m] int32        tokens of this step whose logits are wanted, ascending; m may be 0
    checkpoints [n, 2] int32  tokens of this step, ascending, none the last of its row, and for each a slot that is no
                              row's and receives the row's state after the token; None: no token
    deferred [rows] bool     rows whose recurrent states this step leaves unchanged until ``advance``; None: no row

    A deferred row has at most ``max_rollback_tokens`` tokens, and no checkpoint. Other engines than those with
    ``takes_checkpoints`` refuse them.

    After a step of rows with one token each, its object may be passed again, with other values in input_ids, positions,
    seq_lens and slot_mapping: each row has the token that follows. An engine need not look at the others again.

    A row whose first new token has position 0 starts from a slot that the caller has zeroed. Padding rows come last,
    have one token each (id 0, position 0, slot_mapping -1) and one logits index each, and touch no pool.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: np.ndarray
    slot_mapping: np.ndarray
    state_indices: np.ndarray
    logits_indices: np.ndarray
    deferred: np.ndarray | None = None
    checkpoints: np.ndarray | None = None
