"""Proposals of a second, smaller model, which runs beside the one that it drafts for."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.engines.paged import PagedEngine
from runtime.serving.draft_caches import BLOCK_SIZE, DraftCaches
from runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from runtime.speculation import Proposal, Wanted


class ModelDrafter:
    """A ``Drafter`` over the artifact of ``engine``: its most likely tokens, one after the other.

    Of a model with recurrent layers each sequence keeps the state after every drafted token, so that it goes on from
    the last one that was accepted. All sequences of a step run together. The drafter owns the engine's pools, and
    ``close`` closes the engine.
    """

    def __init__(
        self, engine: PagedEngine, vocab: int, rows: int, length: int, tokens: int, memory_bytes: int | None = None
    ) -> None:
        """For ``rows`` sequences of up to ``length`` tokens with at most ``tokens`` candidates, of ``vocab`` tokens.

        EngineError when the memory does not hold one sequence.
        """
        self._engine, self._vocab, self._tokens = engine, min(vocab, engine.config.vocab_size), tokens
        self._length = min(length + tokens, engine.config.max_seq_len)
        self._caches = DraftCaches(engine, rows, self._length, tokens, memory_bytes)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        sequences = {each.sequence for each in wanted}
        try:
            found = self._proposed(wanted, sequences)
        except BaseException:
            # Nothing is known of their memory.
            for sequence in sequences:
                self._caches.forget(sequence)
            raise
        return [Proposal(tuple(found.get(each.sequence, ()))) for each in wanted]

    def forget(self, sequence: int) -> None:
        self._caches.forget(sequence)

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _proposed(self, wanted: Sequence[Wanted], sequences: set[int]) -> dict[int, list[int]]:
        drafts: dict[int, _Draft] = {}
        for each in wanted:
            most = min(each.most, self._tokens, self._length - len(each.tokens) + 1)
            if most < 1:
                continue
            known = self._caches.room(each.sequence, len(each.tokens) + most - 1, sequences)
            if known is None:
                continue
            known.rewind(each.tokens)
            # The model may have no embedding for tokens of the other one.
            if max(each.tokens[known.length :]) < self._engine.config.vocab_size:
                drafts[each.sequence] = _Draft(known, each.tokens, most)
        live = self._caught_up(list(drafts.values()))
        for index in range(1, self._tokens):
            live = [draft for draft in live if len(draft.found) == index < draft.most]
            self._grown(live)
        return {sequence: draft.found for sequence, draft in drafts.items()}

    def _caught_up(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Consume what is certain, in steps as large as the engine takes; then each has its first candidate."""
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
            for draft, row, token in zip(fed, rows, self._best(rows), strict=True):
                draft.known.length += len(row.tokens)
                if draft.known.length == len(draft.tokens):
                    waiting.remove(draft)
                    draft.add(token, self._vocab)
        return [draft for draft in drafts if draft.found]

    def _grown(self, drafts: Sequence[_Draft]) -> None:
        """One more candidate for each, from the last one."""
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
            for draft, token in zip(some, self._best(rows), strict=True):
                draft.add(token, self._vocab)

    def _best(self, rows: Sequence[DraftRow]) -> list[int | None]:
        return self._engine.launch(draft_inputs(rows, BLOCK_SIZE)).best_tokens()


class _Draft:
    """A proposal under way: ``found`` so far, of at most ``most``."""

    def __init__(self, known: DraftedSequence, tokens: Sequence[int], most: int) -> None:
        self.known, self.tokens, self.most = known, tokens, most
        self.found: list[int] = []

    def row(self, tokens: Sequence[int], state: int) -> DraftRow:
        start = self.known.length + len(self.known.drafted)
        return DraftRow(self.known, tokens, start, self.known.slots[state] if self.known.slots else -1)

    def add(self, token: int | None, vocab: int) -> None:
        """One more candidate, unless there is none that both models know."""
        if token is not None and token < vocab:
            self.found.append(token)
        else:
            self.most = len(self.found)
