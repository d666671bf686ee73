"""The arrays of one step after the other: while the same sequences decode, those of the step before go on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.paged import PackedInputs, PagedEngine
from hybridge.runtime.scheduler import PlannedRow, ScheduledSequence, StepPlan
from hybridge.runtime.serving.packing import packed_inputs


class StepPacker:
    """``pack`` gives what ``packed_inputs`` does, in arrays that stay as they are until it is called again."""

    def __init__(self, sequences: Mapping[int, ScheduledSequence], manager: BlockManager, engine: PagedEngine) -> None:
        self._sequences, self._manager, self._engine = sequences, manager, engine
        self._rows: tuple[PlannedRow, ...] = ()
        # Of the step before: steps for which its blocks still have room, its tokens, and what counts them.
        self._room = 0
        self._tokens = np.empty(0, np.int64)
        self._counters: list[np.ndarray] = []
        self._inputs: PackedInputs

    def pack(self, plan: StepPlan) -> PackedInputs:
        """The arrays of ``plan``, which has at least one row."""
        if self._room and plan.moves_nothing and self._goes_on(plan.rows):
            self._room -= 1
            sequences = self._sequences
            self._tokens[:] = [sequences[row.sequence].tokens[-1] for row in plan.rows]
            for counter in self._counters:
                counter += 1
        else:
            self._inputs = packed_inputs(plan, self._sequences, self._manager, self._engine)
            self._prepare(plan.rows)
        self._rows = plan.rows
        return self._inputs

    def _goes_on(self, rows: tuple[PlannedRow, ...]) -> bool:
        """Whether each row has the token that follows the one of the step before."""
        before = self._rows
        if len(rows) != len(before):
            return False
        for row, last in zip(rows, before, strict=True):
            sequence, start, count, table_row, slot, samples, draft_tokens, _ = row
            if (
                sequence != last.sequence
                or start != last.start + 1
                or count != 1
                or not samples
                or draft_tokens
                or slot != last.slot
                or table_row != last.table_row
            ):
                return False
        return True

    def _prepare(self, rows: tuple[PlannedRow, ...]) -> None:
        """Set up the arrays that ``pack`` updates when the next step continues this one."""
        inputs, manager, count = self._inputs, self._manager, len(rows)
        self._room = 0
        if not all(row.samples and row.new_tokens == 1 and not row.prompt_logits for row in rows):
            return
        size = manager.block_size
        self._tokens = inputs.input_ids[:count]
        self._counters = [inputs.positions[:count], inputs.seq_lens[:count]]
        self._room = min(size - 1 - row.start % size for row in rows)
        if manager.needs.kv:
            self._counters.append(inputs.slot_mapping[:count])
