"""A step while it is planned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hybridge.runtime.blocks import Reservation, SequenceMemory
from hybridge.runtime.scheduler.plan import NewBlock, PlannedRow, RepeatedPlan, StepPlan, Swap
from hybridge.runtime.scheduler.sequence import ScheduledSequence


class StepBuilder:
    """Rows in the order in which they were added, the rest of the token budget, and what is swapped."""

    def __init__(self, reservation: Reservation, budget: int, prompt_logits: int) -> None:
        """``prompt_logits``: prompt tokens whose logits the step may still return in addition."""
        self.reservation = reservation
        self.budget = budget
        self.prompt_logits = prompt_logits
        self.rows: dict[ScheduledSequence, int] = {}
        self.draft_tokens: dict[ScheduledSequence, tuple[int, ...]] = {}
        self.logits: dict[ScheduledSequence, int] = {}
        self.admitted: list[ScheduledSequence] = []
        self.preempted: set[ScheduledSequence] = set()
        self.swap_outs: list[Swap] = []
        self.swap_ins: list[Swap] = []
        # Whether every row decodes.
        self.decodes = True
        # Sequences that are ended during the step.
        self.cancelled: list[ScheduledSequence] = []
        # Where the step can be repeated: its plan, how often it has been, and the queues' version.
        self._first: StepPlan | None = None
        self._repeats = self._version = 0
        # Rows by their memory, once a repeated step has needed blocks.
        self._row_of: dict[SequenceMemory, int] | None = None

    def add(self, sequence: ScheduledSequence, count: int) -> None:
        """Feed ``count`` tokens, for which memory is reserved."""
        self.decodes &= count == sequence.pending == 1
        self.rows[sequence] = count
        self.budget -= count
        if sequence.prompt_logits_left:
            logits = sequence.prompt_logits_of(sequence.memory.length + count)
            self.logits[sequence] = logits
            self.prompt_logits -= logits

    def add_decoding(self, sequences: Sequence[ScheduledSequence]) -> None:
        """Feed one token of each, for which memory is reserved."""
        self.rows.update(dict.fromkeys(sequences, 1))
        self.budget -= len(sequences)

    def add_draft_tokens(self, sequence: ScheduledSequence, draft_tokens: tuple[int, ...]) -> None:
        """Feed the last token and then ``draft_tokens``, for all of which memory is reserved."""
        self.add(sequence, 1 + len(draft_tokens))
        self.draft_tokens[sequence] = draft_tokens

    def drop(self, sequence: ScheduledSequence) -> None:
        """Take the sequence out again, if it is in."""
        if sequence in self.rows:
            self.budget += self.rows.pop(sequence)
            self.draft_tokens.pop(sequence, None)
            self.prompt_logits += self.logits.pop(sequence, 0)
            self.reservation.drop(sequence.memory)

    def allow_repeats(self, plan: StepPlan, version: int) -> None:
        """As long as the queues have this ``version``, the step that follows has the same rows, which all decode."""
        self._first, self._version = plan, version

    def repeated(self, number: int, version: int) -> RepeatedPlan | None:
        """After the commit, the same rows with the token that each has got since; None if that is not what follows."""
        if self._first is None or self._version != version:
            return None
        for sequence in self.rows:
            if len(sequence.tokens) + sequence.awaits_token - sequence.memory.length != 1:
                return None
        grown = self.reservation.extend_again()
        if grown is None:
            return None
        self._repeats += 1
        return RepeatedPlan(number, self._first, self._repeats, self._new_blocks(grown) if grown else ())

    def lost(self) -> list[ScheduledSequence]:
        """Sequences that ended without the token that the step has fed: their states are one token ahead."""
        fed = {each: self.rows.get(each, 0) for each in self.cancelled if each not in self.draft_tokens}
        return [sequence for sequence, count in fed.items() if sequence.pending < count]

    def leave_out(self, plan: StepPlan, ended: Collection[ScheduledSequence]) -> StepPlan:
        """``plan``, which is this step, without the sequences ``ended``, which are as before it."""
        if not ended:
            return plan
        for sequence in ended:
            self.drop(sequence)
        self._first = None
        ids, reservation = {sequence.id for sequence in ended}, self.reservation
        rows = tuple([row for row in plan.rows if row.sequence not in ids])
        if plan.repeats:
            return StepPlan(plan.number, rows)
        return replace(plan, rows=rows, block_copies=reservation.block_copies, taken_slots=reservation.taken_slots)

    def _new_blocks(self, grown: Sequence[SequenceMemory]) -> Sequence[NewBlock]:
        if self._row_of is None:
            self._row_of = {sequence.memory: row for row, sequence in enumerate(self.rows)}
        row_of = self._row_of
        return [NewBlock(row_of[memory], len(memory.blocks) - 1, memory.blocks[-1]) for memory in grown]

    def finish(
        self, number: int, slot_copies: list[tuple[int, int]], forked: list[ScheduledSequence]
    ) -> StepPlan | None:
        """The plan, or None when there is nothing to do."""
        rows = [
            PlannedRow(each.id, (m := each.memory).length, n, m.row, m.slot, n == each.pending)
            for each, n in self.rows.items()
        ]
        if self.draft_tokens:
            rows = [self._with_draft_tokens(*pair) for pair in zip(self.rows, rows, strict=True)]
        if self.logits:
            rows = [
                row._replace(prompt_logits=self.logits.get(each, 0)) for each, row in zip(self.rows, rows, strict=True)
            ]
        if self.reservation.takes_checkpoints:
            rows = [
                row._replace(checkpoints=self.reservation.inner_checkpoints(each.memory))
                for each, row in zip(self.rows, rows, strict=True)
            ]
        if not (rows or self.preempted or self.admitted or slot_copies):
            return None
        if not (slot_copies or self.swap_outs or self.swap_ins or self.reservation.moves):
            return StepPlan(number, tuple(rows))
        return StepPlan(
            number,
            tuple(rows),
            tuple(slot_copies),
            tuple(self.swap_outs),
            tuple(self.swap_ins),
            self.reservation.new_slots,
            self.reservation.block_copies,
            tuple([sequence.id for sequence in forked]),
            self.reservation.resumed_slots,
            self.reservation.taken_slots,
        )

    def _with_draft_tokens(self, sequence: ScheduledSequence, row: PlannedRow) -> PlannedRow:
        tried = self.draft_tokens.get(sequence)
        if tried is None:
            return row
        return row._replace(samples=True, draft_tokens=tried)
