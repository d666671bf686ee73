"""Converts a plan to the arrays of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.scheduler import PlannedRow, ScheduledSequence, StepPlan

# Maximum tokens of a step of one row whose numbers are listed one by one.
_FEW = 16

# In place of the token of a row that gets it from the step before.
_AWAITED = (0,)


def packed_inputs(
    plan: StepPlan, sequences: Mapping[int, ScheduledSequence], manager: BlockManager, engine: PagedEngine
) -> PackedInputs:
    """The arrays of ``plan``, which has at least one row; rows that all decode are padded as the engine asks.

    In place of a token that its sequence awaits there is another one.
    """
    rows = plan.rows
    if len(rows) == 1 and rows[0].logits == rows[0].new_tokens <= _FEW and not rows[0].checkpoints:
        return _one_row(rows[0], sequences[rows[0].sequence].tokens, manager, engine)
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
            flat += sequences[row.sequence].tokens[row.start : row.start + row.new_tokens] or _AWAITED
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


def _one_row(row: PlannedRow, known: Sequence[int], manager: BlockManager, engine: PagedEngine) -> PackedInputs:
    """The arrays of a step of one row with few tokens, all with logits: lists take less time than NumPy here."""
    start, count, draft_tokens = row.start, row.new_tokens, row.draft_tokens
    end, size, table = start + count, manager.block_size, manager.rows.array
    slots = [-1] * count
    if manager.needs.kv:
        blocks = table[row.table_row, : -(-end // size)].tolist()
        slots = [blocks[at // size] * size + at % size for at in range(start, end)]
    width = min(engine.padded_blocks(max(1, manager.blocks_for(end))), table.shape[1])
    # A step that is launched ahead is fed a token that is not known yet: any one takes its place.
    tokens = [*known[start : end - len(draft_tokens)], *draft_tokens] or [known[-1]]
    inputs = PackedInputs(
        np.array(tokens, np.int64),
        np.arange(start, end),
        np.array((0, count), np.int32),
        np.array((end,), np.int32),
        table[row.table_row : row.table_row + 1, :width].copy(),
        np.array(slots, np.int32),
        np.array((row.slot,), np.int32),
        np.arange(count, dtype=np.int32),
        np.array((True,)) if draft_tokens and manager.needs.state else None,
    )
    return padded(inputs, engine.padded_rows(1) - 1) if count == 1 else inputs


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
