"""The arrays of consecutive steps: those of a repeated step are derived from the previous ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.scheduler import NewBlock, RepeatedPlan, ScheduledSequence, StepPlan
from hybridge.runtime.serving.packing import packed_inputs

# Up to this many rows, numbers are changed one by one: at the start of a step NumPy is not in the processor's caches.
_FEW = 4


class StepPacker:
    """``pack`` gives what ``packed_inputs`` does, in arrays that stay unchanged until it is called again."""

    def __init__(self, sequences: Mapping[int, ScheduledSequence], manager: BlockManager, engine: PagedEngine) -> None:
        self._sequences, self._manager, self._engine = sequences, manager, engine
        self._inputs: PackedInputs

    def pack(self, plan: StepPlan) -> PackedInputs:
        """The arrays of ``plan``, which has at least one row."""
        if isinstance(plan, RepeatedPlan) and self._has_columns(plan.new_blocks):
            self._advance()
            if plan.new_blocks:
                self._set_blocks(plan.new_blocks, self._inputs.block_table, self._inputs.slot_mapping)
        else:
            self._set_arrays(plan, packed_inputs(plan, self._sequences, self._manager, self._engine))
        return self._inputs

    def pack_ahead(self, plan: StepPlan) -> PackedInputs:
        """The arrays of ``plan``, the step after the one that was packed last, which still uses its own arrays.

        Tokens that sequences await are placeholders. ``keep`` makes these the arrays of the last step, once it is
        launched.
        """
        if not (isinstance(plan, RepeatedPlan) and self._has_columns(plan.new_blocks)):
            return packed_inputs(plan, self._sequences, self._manager, self._engine)
        before, rows = self._inputs, len(self._tokens_of)
        positions, lengths, slots = before.positions.copy(), before.seq_lens.copy(), before.slot_mapping.copy()
        positions[:rows] += 1
        lengths[:rows] += 1
        if self._manager.needs.kv:
            slots[:rows] += 1
        table = before.block_table.copy() if plan.new_blocks else before.block_table
        self._set_blocks(plan.new_blocks, table, slots)
        return replace(before, positions=positions, seq_lens=lengths, block_table=table, slot_mapping=slots)

    def keep(self, plan: StepPlan, inputs: PackedInputs) -> None:
        """Make ``inputs``, which ``pack_ahead`` gave for ``plan``, the arrays of the last step."""
        if plan.repeats:
            self._inputs = inputs
            self._set_views(len(self._tokens_of))
        else:
            self._set_arrays(plan, inputs)

    def _set_arrays(self, plan: StepPlan, inputs: PackedInputs) -> None:
        """Make ``inputs`` the arrays of the last step, ``plan``."""
        self._inputs = inputs
        self._tokens_of = [self._sequences[row.sequence].tokens for row in plan.rows]
        self._set_views(len(plan.rows))

    def _set_views(self, rows: int) -> None:
        """Set the views of the arrays that a repeated plan changes, without padding."""
        inputs = self._inputs
        self._tokens = inputs.input_ids[:rows]
        self._counters = [inputs.positions[:rows], inputs.seq_lens[:rows]]
        if self._manager.needs.kv:
            self._counters.append(inputs.slot_mapping[:rows])
        self._token_view, self._views = self._tokens.data, [counter.data for counter in self._counters]

    def _advance(self) -> None:
        """Advance each row to its newest token."""
        if len(self._tokens_of) > _FEW:
            self._tokens[:] = [tokens[-1] for tokens in self._tokens_of]
            for counter in self._counters:
                counter += 1
        else:
            for row, tokens in enumerate(self._tokens_of):
                self._token_view[row] = tokens[-1]
                for view in self._views:
                    view[row] += 1

    def _set_blocks(self, new_blocks: Sequence[NewBlock], table: np.ndarray, slots: np.ndarray) -> None:
        """Enter blocks into the table; each begins with the next token of its row."""
        size = self._manager.block_size
        for row, column, block in new_blocks:
            table[row, column], slots[row] = block, block * size

    def _has_columns(self, new_blocks: Sequence[NewBlock]) -> bool:
        """Whether the table of the last step is wide enough."""
        if not new_blocks:
            return True
        width = self._inputs.block_table.shape[1]
        return all([column < width for _, column, _ in new_blocks])
