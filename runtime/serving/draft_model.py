"""Draft tokens of a second, smaller model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import DraftToken
from hybridge.runtime.serving.draft_caches import DraftCaches
from hybridge.runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from hybridge.runtime.speculation import DraftRequest, Draw, Proposal


class ModelDrafter:
    """A ``Drafter`` over the artifact of ``engine``: its most likely tokens, one after another, or sampled ones.

    With recurrent layers, the state after every draft token of a sequence is stored, so that the next proposal
    continues from the last accepted one. All sequences of a step run together. The drafter owns the engine's pools, and
    ``close`` closes the engine.
    """

    def __init__(
        self,
        engine: PagedEngine,
        vocab: int,
        rows: int,
        length: int,
        tokens: int,
        memory_bytes: int | None = None,
        samples: bool = False,
    ) -> None:
        """For ``rows`` sequences of up to ``length`` tokens with at most ``tokens`` draft tokens, of ``vocab`` tokens.

        samples: sample draft tokens for requests that sample, from the tokens that both models have.
        EngineError when the memory does not hold one sequence.
        """
        self._engine, self._vocab, self._tokens, self._samples = engine, vocab, tokens, samples
        self._length = min(length + tokens, engine.config.max_seq_len)
        self._caches = DraftCaches(engine, rows, self._length, tokens, memory_bytes)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        sequences = {each.sequence for each in requests}
        try:
            found = self._proposed(requests, sequences)
        except BaseException:
            # The contents of their memory are unknown.
            for sequence in sequences:
                self._caches.forget(sequence)
            raise
        return [found.get(each.sequence, Proposal()) for each in requests]

    def forget(self, sequence: int) -> None:
        self._caches.forget(sequence)

    def forget_all(self) -> None:
        self._caches.forget_all()

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _proposed(self, requests: Sequence[DraftRequest], sequences: set[int]) -> dict[int, Proposal]:
        drafts: dict[int, _Draft] = {}
        for each in requests:
            most = min(each.most, self._tokens, self._length - len(each.tokens) + 1)
            if most < 1:
                continue
            length, known = len(each.tokens) + most - 1, self._caches.find(each.sequence)
            if known is not None and known.slots and known.length >= len(each.tokens):
                # Requested again without a new token, because the sequence did not fit into the step: its state has
                # consumed the last token, and the earlier state is gone.
                self._caches.forget(each.sequence)
            known = self._caches.room(each.sequence, length, sequences)
            if known is None:
                continue
            known.rewind(each.tokens)
            # The draft model may have no embedding for some tokens of the model.
            if max(each.tokens[known.length :]) < self._engine.config.vocab_size:
                drafts[each.sequence] = _Draft(known, each.tokens, most, each.draw if self._samples else None)
        live = self._catch_up(list(drafts.values()))
        for index in range(1, self._tokens):
            live = [draft for draft in live if len(draft.found) == index < draft.most]
            self._extend(live)
        return {sequence: draft.proposal(self._vocab) for sequence, draft in drafts.items()}

    def _catch_up(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Consume the certain tokens in steps as large as the engine takes; the last gives the first draft tokens."""
        limits, waiting = self._engine.limits, list(drafts)
        while waiting:
            room, fed, rows = limits.max_tokens, [], []
            for draft in waiting[: limits.max_rows]:
                tokens = draft.tokens[draft.known.length : min(len(draft.tokens), draft.known.length + room)]
                if not tokens:
                    break
                fed.append(draft)
                rows.append(draft.row(tokens, 0))
                room -= len(tokens)
            result = self._engine.launch(draft_inputs(rows, self._caches.block_size))
            for draft, row in zip(fed, rows, strict=True):
                draft.known.length += len(row.tokens)
            done = [draft.known.length == len(draft.tokens) for draft in fed]
            self._choose([draft if ready else None for draft, ready in zip(fed, done, strict=True)], result)
            waiting = [draft for draft in waiting if draft.known.length < len(draft.tokens)]
        return [draft for draft in drafts if draft.found]

    def _extend(self, drafts: Sequence[_Draft]) -> None:
        """Add one more draft token to each, computed from the last one."""
        most = self._engine.limits.max_rows
        for begin in range(0, len(drafts), most):
            some = drafts[begin : begin + most]
            count = len(some[0].known.drafted)
            if some[0].known.slots:
                sources, targets = ([draft.known.slots[count + at] for draft in some] for at in (0, 1))
                self._engine.copy_slots(sources, targets)
            rows = [draft.row(draft.found[-1:], count + 1) for draft in some]
            for draft in some:
                draft.known.drafted.append(draft.found[-1])
            self._choose(some, self._engine.launch(draft_inputs(rows, self._caches.block_size)))

    def _choose(self, drafts: Sequence[_Draft | None], result: StepResult) -> None:
        """Add a draft token to each, unless both models share none; None: a row that needs none yet."""
        best, both = result.best_tokens(), min(self._vocab, self._engine.config.vocab_size)
        drawing = [row for row, draft in enumerate(drafts) if draft and draft.draw and best[row] is not None]
        logits = dict(zip(drawing, result.rows(drawing), strict=True)) if drawing else {}
        for row, (draft, token) in enumerate(zip(drafts, best, strict=True)):
            if draft is None:
                continue
            if draft.draw is not None and row in logits:
                draft.add(draft.draw(logits[row][:both]))
            elif token is not None and token < both:
                draft.add(DraftToken(token))
            else:
                draft.most = len(draft.found)


class _Draft:
    """A proposal in progress: ``found`` so far, of at most ``most``; sampled by ``draw``, else the most likely ones."""

    def __init__(self, known: DraftedSequence, tokens: Sequence[int], most: int, draw: Draw | None) -> None:
        self.known, self.tokens, self.most, self.draw = known, tokens, most, draw
        self.found: list[int] = []
        self._probabilities: list[np.ndarray] = []

    def row(self, tokens: Sequence[int], state: int) -> DraftRow:
        start = self.known.length + len(self.known.drafted)
        return DraftRow(self.known, tokens, start, self.known.slots[state] if self.known.slots else -1)

    def add(self, draft_token: DraftToken) -> None:
        """One more draft token."""
        self.found.append(draft_token.token)
        if draft_token.probabilities is not None:
            self._probabilities.append(draft_token.probabilities)

    def proposal(self, vocab: int) -> Proposal:
        """The proposal over ``vocab`` tokens, of which the draft model may have only the first ones."""
        if not self._probabilities:
            return Proposal(tuple(self.found))
        distributions = np.zeros((len(self.found), vocab), self._probabilities[0].dtype)
        for row, probabilities in zip(distributions, self._probabilities, strict=True):
            row[: probabilities.size] = probabilities
        return Proposal(tuple(self.found), distributions)
