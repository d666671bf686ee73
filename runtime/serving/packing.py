"""Converts a plan to the arrays of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.paged import PackedInputs, PagedEngine
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan


def packed_inputs(
    plan: StepPlan, sequences: Mapping[int, ScheduledSequence], manager: BlockManager, engine: PagedEngine
) -> PackedInputs:
    """The arrays of ``plan``, which has at least one row; rows that all decode are padded as the engine asks."""
    rows = plan.rows
    ids, starts, counts, table_rows, slots, samples, draft_tokens, _, checkpoints = zip(*rows, strict=True)
    total = sum(counts)
    start = np.array(starts, np.int64)
    table_row = np.array(table_rows, np.intp)
    if total == len(rows) and all(samples):
        tokens = np.array([sequences[id_].tokens[-1] for id_ in ids], np.int64)
        bounds = np.arange(total + 1, dtype=np.int32)
        positions, owner, lengths, last = start, table_row, start + 1, bounds[:-1]
    else:
        count = np.array(counts, np.int64)
        flat: list[int] = []
        for row in rows:
            flat += sequences[row.sequence].tokens[row.start : row.start + row.new_tokens]
            flat += row.draft_tokens
        tokens = np.array(flat, np.int64)
        bounds = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(count, out=bounds[1:])
        positions = np.arange(total) + np.repeat(start - bounds[:-1], count)
        owner, lengths = np.repeat(table_row, count), start + count
        if plan.is_plain:
            last = (bounds[1:] - 1)[np.array(samples)]
        else:
            ends = zip(bounds[1:].tolist(), rows, strict=True)
            last = np.concatenate([np.arange(end - row.logits, end) for end, row in ends])
    table = manager.rows.array
    if manager.needs.kv:
        block, offset = np.divmod(positions, manager.block_size)
        slot_mapping = (table[owner, block] * manager.block_size + offset).astype(np.int32)
    else:
        slot_mapping = np.full(total, -1, np.int32)
    width = engine.padded_blocks(max(1, manager.blocks_for(int(lengths.max()))))
    inputs = PackedInputs(
        tokens,
        positions,
        bounds,
        lengths.astype(np.int32),
        table[table_row, : min(width, table.shape[1])],
        slot_mapping,
        np.array(slots, np.int32),
        last.astype(np.int32, copy=False),
        checkpoints=_checkpoint_tokens(bounds, checkpoints) if any(checkpoints) else None,
    )
    if manager.needs.state and any(draft_tokens):
        return replace(inputs, deferred=np.array([bool(row.draft_tokens) for row in rows]))
    decodes = total == len(rows) == last.size
    return padded(inputs, engine.padded_rows(total) - total) if decodes else inputs


def _checkpoint_tokens(bounds: np.ndarray, checkpoints: Sequence[Sequence[tuple[int, int]]]) -> np.ndarray:
    """``PackedInputs.checkpoints`` of rows that begin at ``bounds``."""
    pairs = [
        (begin + tokens - 1, slot)
        for begin, row in zip(bounds.tolist(), checkpoints, strict=False)
        for tokens, slot in row
    ]
    return np.array(pairs, np.int32)


def padded(inputs: PackedInputs, rows: int) -> PackedInputs:
    """``inputs`` of rows that decode, with ``rows`` padding rows after them."""
    if not rows:
        return inputs
    total = inputs.input_ids.size
    more = np.arange(total, total + rows, dtype=np.int32)

    def filled(array: np.ndarray, value: int) -> np.ndarray:
        return np.concatenate((array, np.full((rows, *array.shape[1:]), value, array.dtype)))

    return PackedInputs(
        filled(inputs.input_ids, 0),
        filled(inputs.positions, 0),
        np.concatenate((inputs.query_start_loc, more + 1)),
        filled(inputs.seq_lens, 0),
        filled(inputs.block_table, -1),
        filled(inputs.slot_mapping, -1),
        filled(inputs.state_indices, -1),
        np.concatenate((inputs.logits_indices, more)),
    )
