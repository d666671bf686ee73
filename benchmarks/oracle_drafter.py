"""A drafter that knows the answer, and is right as often as it is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.speculation import Proposal, Wanted


class OracleDrafter:
    """Every candidate is right with probability ``acceptance``, whatever became of those before it.

    text: prompt and answer. Which candidates are right depends on ``seed`` and the place in the text alone.
    """

    def __init__(self, text: Sequence[int], vocab: int, acceptance: float, seed: int = 0) -> None:
        self.text, self._vocab = list(text), vocab
        self._chances = np.random.default_rng(seed).random((len(self.text) + 1, 16)) < acceptance

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self._proposal(len(each.tokens), each.most) for each in wanted]

    def forget(self, sequence: int) -> None:
        """Nothing is kept of a sequence."""

    def _proposal(self, size: int, most: int) -> Proposal:
        tokens = self.text[size : size + most]
        rights = self._chances[min(size, len(self.text))]
        return Proposal(tuple(t if right else (t + 1) % self._vocab for t, right in zip(tokens, rights, strict=False)))
