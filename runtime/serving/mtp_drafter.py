"""Proposals of the model's own multi-token prediction head, from what the model made of the tokens so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from artifact.names import LOGITS, layer_output
from runtime.engines.mtp_head import HeadInputs, MtpHead
from runtime.engines.paged import PackedInputs, PagedEngine
from runtime.engines.step_result import ArrayResult, StepResult
from runtime.scheduler import PlannedRow
from runtime.serving.draft_caches import BLOCK_SIZE, DraftCaches
from runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from runtime.serving.hidden_states import HiddenStates
from runtime.speculation import Proposal, Wanted


class MtpDrafter:
    """A ``Drafter`` that runs the steps of the model too, to see the hidden states of every token.

    The head goes through a sequence one token behind the model; beyond that it goes on from its own hidden states, and
    forgets these when the model's are there. A sequence has no proposals whose first tokens the model did not compute
    in a step, as they were cached, or those of another one that was forked. ``close`` closes the head's engine.
    """

    def __init__(self, head: MtpHead, model: PagedEngine, rows: int, length: int, tokens: int) -> None:
        """For ``rows`` sequences of up to ``length`` tokens with at most ``tokens`` candidates.

        EngineError when memory does not hold one.
        """
        self._head, self._tokens = head, tokens
        self._value = layer_output(model.config.num_hidden_layers - 1)
        self._length = min(length + tokens, head.config.max_seq_len)
        self._caches = DraftCaches(head, rows, self._length, 0, None)
        self._hidden: dict[int, HiddenStates] = {}

    def launch(self, engine: PagedEngine, inputs: PackedInputs, rows: Sequence[PlannedRow]) -> StepResult:
        """Run a step of the model, whose first rows are ``rows``."""
        found = engine.step_values(inputs, (self._value,))
        for row, begin, end in zip(rows, inputs.query_start_loc, inputs.query_start_loc[1:], strict=False):
            self._hidden.setdefault(row.sequence, HiddenStates()).put(row.start, found[self._value][begin:end])
        return ArrayResult(found[LOGITS])

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        sequences = {each.sequence for each in wanted}
        drafts = {}
        for each in wanted:
            known, hidden = self._ready(each, sequences), self._hidden.get(each.sequence)
            if known is not None and hidden is not None:
                drafts[each.sequence] = _HeadDraft(known, each, min(each.most, self._length - len(each.tokens) + 1))
        try:
            self._run(list(drafts.values()))
        except BaseException:
            for sequence in sequences:
                self.forget(sequence)
            raise
        return [Proposal(tuple(drafts[e.sequence].found) if e.sequence in drafts else ()) for e in wanted]

    def forget(self, sequence: int) -> None:
        self._hidden.pop(sequence, None)
        self._caches.forget(sequence)

    def close(self) -> None:
        """Release the head's engine."""
        self._head.close()

    def _ready(self, each: Wanted, sequences: set[int]) -> DraftedSequence | None:
        """The head's memory of a sequence whose hidden states are all there; None for one without."""
        positions = len(each.tokens) - 1
        room = min(each.most, self._length - positions)
        if positions < 1 or room < 1 or each.sequence not in self._hidden:
            return None
        known = self._caches.room(each.sequence, positions + room - 1, sequences)
        if known is None:
            return None
        # A sequence that found no room in a step is asked for again: its last position is consumed once more.
        known.length = min(known.length, positions - 1)
        return known if self._hidden[each.sequence].has(known.length, positions) else None

    def _run(self, drafts: list[_HeadDraft]) -> None:
        """What is certain first, in steps as large as the head takes, then one candidate more for each."""
        limits, waiting = self._head.limits, list(drafts)
        while waiting:
            room, fed = limits.max_tokens, []
            for draft in waiting[: limits.max_rows]:
                count = min(draft.left, room)
                if count:
                    hidden = self._hidden[draft.sequence].get(draft.known.length, draft.known.length + count)
                    fed.append((draft, draft.certain(count), hidden))
                    room -= count
            self._step(fed, own=False)
            for draft, row, _ in fed:
                draft.known.length += len(row.tokens)
                self._hidden[draft.sequence].drop(draft.known.length - 1)
                if draft.left:
                    draft.found.clear()
                else:
                    waiting.remove(draft)
        for count in range(1, self._tokens):
            live = [draft for draft in drafts if len(draft.found) == count < draft.most]
            for begin in range(0, len(live), limits.max_rows):
                some = live[begin : begin + limits.max_rows]
                self._step([(draft, draft.next(), draft.hidden) for draft in some], own=True)

    def _step(self, fed: Sequence[tuple[_HeadDraft, DraftRow, np.ndarray]], own: bool) -> None:
        packed = draft_inputs([row for _, row, _ in fed], BLOCK_SIZE)
        hidden = np.concatenate([part for _, _, part in fed])
        flags = np.full(len(hidden), own, np.int32)
        best, after = self._head.run(HeadInputs(**vars(packed), hidden_states=hidden, is_own=flags))
        for (draft, _, _), token, last in zip(fed, best, packed.logits_indices.tolist(), strict=True):
            draft.hidden = after[last : last + 1]
            if token is None:
                draft.most = len(draft.found)
            else:
                draft.found.append(token)


class _HeadDraft:
    """A proposal under way. hidden [1, hidden]: of the last position that the head consumed."""

    def __init__(self, known: DraftedSequence, wanted: Wanted, most: int) -> None:
        self.known, self.sequence, self.most = known, wanted.sequence, most
        self._tokens = wanted.tokens
        self.found: list[int] = []
        self.hidden = np.empty(0, np.float32)

    @property
    def left(self) -> int:
        """Positions that the head has not consumed and the model has."""
        return len(self._tokens) - 1 - self.known.length

    def certain(self, count: int) -> DraftRow:
        begin = self.known.length
        return DraftRow(self.known, self._tokens[begin + 1 : begin + 1 + count], begin, -1)

    def next(self) -> DraftRow:
        start = len(self._tokens) - 2 + len(self.found)
        return DraftRow(self.known, self.found[-1:], start, -1)
