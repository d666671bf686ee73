"""Prompt lookup: proposes what followed the same tokens earlier.

It needs no model, and is faster where an answer repeats its prompt or itself: edits, summaries, quotations, code.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.runtime.speculation.drafter import DraftRequest
from hybridge.runtime.speculation.ngram_index import NgramIndex
from hybridge.runtime.speculation.proposal import Proposal


class NgramDrafter:
    """A ``Drafter`` that looks for the last ``longest`` tokens of a sequence in it, then for fewer, down to
    ``shortest``."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._indices: dict[int, NgramIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(self.index(each.sequence).propose(each.tokens, each.most)) for each in requests]

    def forget(self, sequence: int) -> None:
        self._indices.pop(sequence, None)

    def index(self, sequence: int) -> NgramIndex:
        """The runs of a sequence, until ``forget``."""
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = NgramIndex(self._shortest, self._longest)
        return index
