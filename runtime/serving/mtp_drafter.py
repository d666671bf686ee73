"""Proposals of the model's own multi-token prediction head, from the model's hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.runtime.engines.hidden_rows import NOWHERE
from hybridge.runtime.engines.mtp_head import HeadInputs, MtpHead
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from hybridge.runtime.scheduler import PlannedRow
from hybridge.runtime.serving.draft_caches import DraftCaches
from hybridge.runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from hybridge.runtime.serving.hidden_state_cache import HiddenStateCache, HiddenStates
from hybridge.runtime.speculation import DraftRequest, Proposal

# Above this number of hidden states that the head has not seen, it consumes them even without a proposal.
_MOST_WAITING = 16


class MtpDrafter:
    """A ``Drafter`` that also sees the steps of the model, to find the hidden states of every token.

    The head consumes a sequence one token behind the model; beyond that it continues from its own hidden states, which
    the model's replace later. It begins with the first position that the model computes: it does not see tokens that
    came from a cache or were computed for another sequence, which lowers acceptance but leaves results correct.
    ``close`` closes the head's engine.
    """

    def __init__(self, head: MtpHead, model: PagedEngine, rows: int, length: int, tokens: int) -> None:
        """For ``rows`` sequences of up to ``length`` tokens with at most ``tokens`` draft tokens.

        EngineError when memory does not hold one, or the engine of the model shows no hidden states.
        """
        self._head, self._rows, self._tokens = head, rows, tokens
        self._length = min(length + tokens, head.config.max_seq_len)
        # Each row's own hidden state, then the stored ones, the last position seen and the draft tokens of a step.
        self._hidden = model.show_hidden_states(rows + rows * (2 + max(_MOST_WAITING, tokens)))
        self._states = HiddenStateCache(self._hidden, rows + 1)
        head.read_from(self._hidden)
        self._caches = DraftCaches(head, rows, self._length, 0, None)
        # An error of the head during a step of the model, raised by the next ``propose``.
        self._failure: Exception | None = None

    def launch(
        self,
        engine: PagedEngine,
        inputs: PackedInputs,
        rows: Sequence[PlannedRow],
        samplings: Mapping[int, TokenSampling] = NO_SAMPLING,
    ) -> StepResult:
        """Run a step of the model, whose first rows are ``rows``."""
        self._save_hidden(rows)
        result = engine.launch(inputs, samplings)
        bounds, ids = inputs.query_start_loc.tolist(), inputs.input_ids
        for row, begin, end in zip(rows, bounds, bounds[1:], strict=False):
            place = self._hidden.first + begin
            self._states.put(row.sequence, row.start, ids[begin:end].tolist(), place, len(row.draft_tokens))
        return result

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        sequences = {each.sequence for each in requests}
        drafts: dict[int, _HeadDraft] = {}
        for each in requests[: self._rows]:
            positions = len(each.tokens) - 1
            most = min(each.most, self._tokens, self._length - positions)
            known = self._ready(each.sequence, positions, most, sequences)
            if known is not None:
                drafts[each.sequence] = _HeadDraft(known, each, most, 1 + len(drafts))
        try:
            self._consume(list(drafts.values()))
        except BaseException:
            for sequence in sequences:
                self.forget(sequence)
            raise
        return [Proposal(tuple(drafts[e.sequence].found) if e.sequence in drafts else ()) for e in requests]

    def forget(self, sequence: int) -> None:
        self._states.forget(sequence)
        self._caches.forget(sequence)

    def forget_all(self) -> None:
        self._states.forget_all()
        self._caches.forget_all()

    def fork(self, parent: int, child: int) -> None:
        """``child`` is a fork of ``parent``."""
        self._states.fork(parent, child)

    def close(self) -> None:
        """Release the head's engine."""
        self._head.close()

    def _ready(self, sequence: int, positions: int, most: int, protected: set[int]) -> DraftedSequence | None:
        """The head's memory of a sequence, with room for ``most`` tokens after so many positions.

        None if the hidden states of the last of them, or the room, are missing. Not all that are before may have
        been consumed.
        """
        states = self._states.of(sequence)
        if states is None or most < 1 or not states.begin < positions <= states.end:
            return None
        known = self._caches.find(sequence)
        # A sequence that found no room in a step is requested again: its last position is consumed again.
        if known is not None and min(known.length, positions - 1) < states.begin:
            self._caches.forget(sequence)
            known = None
        origin = states.begin if known is None else known.origin
        found = self._caches.room(sequence, positions + most - 1 - origin, protected)
        if found is not None and known is None:
            found.origin = found.length = origin
        if found is not None:
            found.length = min(found.length, positions - 1)
        return found

    def _save_hidden(self, rows: Sequence[PlannedRow]) -> None:
        """Before a step that overwrites the hidden states of the last one: consume much of them, keep the rest."""
        starts = {row.sequence: row.start for row in rows}
        late: list[_HeadDraft] = []
        for sequence in self._states:
            known, states = self._caches.find(sequence), self._states.of(sequence)
            assert states is not None
            # Its last position may be consumed again unless the sequence continues in this step.
            self._states.cut(sequence, starts.get(sequence, states.end))
            if known is not None:
                self._states.drop(sequence, known.length - (sequence not in starts))
            if len(states.indices) > _MOST_WAITING:
                late += self._catch_up(sequence, states, {sequence, *(draft.sequence for draft in late)})
        try:
            self._consume(late)
        except BaseException as error:
            for draft in late:
                self.forget(draft.sequence)
            if not isinstance(error, Exception):
                raise
            # The model's step needs nothing of the head.
            self._failure = error
        self._states.keep()

    def _catch_up(self, sequence: int, states: HiddenStates, protected: set[int]) -> list[_HeadDraft]:
        """Drafts without tokens, which consume all certain tokens of a sequence; none where there is no room beside the
        sequences ``protected``."""
        positions = min(states.certain - 1, self._length)
        known = self._ready(sequence, positions, 1, protected)
        if known is None or known.length >= positions:
            return []
        tokens = [0] * states.begin + states.tokens
        return [_HeadDraft(known, DraftRequest(sequence, tokens[: positions + 1], 0), 0, NOWHERE)]

    def _consume(self, drafts: Sequence[_HeadDraft]) -> None:
        """Consume the certain tokens in steps as large as the head takes; the last step gives the draft tokens."""
        limits, waiting = self._head.limits, list(drafts)
        while waiting:
            room, fed = limits.max_tokens, []
            for draft in waiting[: limits.max_rows]:
                count = min(draft.left, room)
                if count:
                    fed.append((draft, draft.certain(count)))
                    room -= count
            for (draft, row), found in zip(fed, self._head.run(self._inputs(fed)), strict=True):
                draft.known.length += len(row.tokens)
                self._states.drop(draft.sequence, draft.known.length - 1)
                if not draft.left:
                    draft.found = found
                    waiting.remove(draft)

    def _inputs(self, fed: Sequence[tuple[_HeadDraft, DraftRow]]) -> HeadInputs:
        """The step of these rows, and how far the head continues from its own for those that it brings to their end."""
        indices: list[int] = []
        for draft, row in fed:
            states = self._states.of(draft.sequence)
            assert states is not None
            indices += states.get(row.start, row.start + len(row.tokens))
        further = [max(0, draft.most - 1) if len(row.tokens) == draft.left else 0 for draft, row in fed]
        return HeadInputs(
            **vars(draft_inputs([row for _, row in fed], self._caches.block_size)),
            hidden_slots=np.array(indices, np.int64),
            is_own=np.zeros(len(indices), np.int32),
            own_slots=np.array([draft.own for draft, _ in fed], np.int64),
            further=np.array(further, np.int32),
        )


class _HeadDraft:
    """A proposal in progress. own: row of what the head made of the last position that it consumed."""

    def __init__(self, known: DraftedSequence, request: DraftRequest, most: int, own: int) -> None:
        self.known, self.sequence, self.most, self.own = known, request.sequence, most, own
        self._tokens = request.tokens
        self.found: list[int] = []

    @property
    def left(self) -> int:
        """Positions that the head has not consumed and the model has."""
        return len(self._tokens) - 1 - self.known.length

    def certain(self, count: int) -> DraftRow:
        """The next ``count`` of them."""
        begin = self.known.length
        return DraftRow(self.known, self._tokens[begin + 1 : begin + 1 + count], begin, -1)
