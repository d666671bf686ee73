"""The arrays of consecutive steps: those of a repeated step are updated in place, each row by one token."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.runtime.blocks import BlockManager
from hybridge.runtime.engines.paged import PackedInputs, PagedEngine
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan
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
        if plan.repeats:
            self._advance()
        else:
            self.take(plan, self.packed(plan))
        return self._inputs

    def packed(self, plan: StepPlan) -> PackedInputs:
        """Arrays of ``plan`` that no later call changes unless ``take`` is given them."""
        return packed_inputs(plan, self._sequences, self._manager, self._engine)

    def take(self, plan: StepPlan, inputs: PackedInputs) -> None:
        """``inputs`` are those of the last step, ``plan``."""
        rows = plan.rows
        self._inputs = inputs
        # The arrays that a repeated plan changes, without padding.
        self._tokens_of = [self._sequences[row.sequence].tokens for row in rows]
        self._tokens = inputs.input_ids[: len(rows)]
        self._counters = [inputs.positions[: len(rows)], inputs.seq_lens[: len(rows)]]
        if self._manager.needs.kv:
            self._counters.append(inputs.slot_mapping[: len(rows)])
        self._token_view, self._views = self._tokens.data, [counter.data for counter in self._counters]

    def _advance(self) -> None:
        """Advance each row to its newest token."""
        if len(self._tokens_of) > _FEW:
            self._tokens[:] = [tokens[-1] for tokens in self._tokens_of]
            for counter in self._counters:
                counter += 1
            return
        for row, tokens in enumerate(self._tokens_of):
            self._token_view[row] = tokens[-1]
            for view in self._views:
                view[row] += 1
