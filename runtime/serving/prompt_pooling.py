"""The hidden state of a prompt: of its last token, or the mean of all."""

from __future__ import annotations

import numpy as np

MEAN, LAST = "mean", "last"
POOLINGS = (MEAN, LAST)


class PromptPooling:
    """Collects the hidden states of a prompt's tokens, after the last layer and before the norm that follows.

    Tokens that are computed again, because their sequence lost its memory, count once.
    """

    def __init__(self, kind: str, prompt: int) -> None:
        """``prompt``: its number of tokens."""
        self._kind, self._prompt = kind, prompt
        self._next, self._sum = 0, np.zeros(0)

    def add(self, start: int, rows: np.ndarray) -> None:
        """``rows`` [n, hidden] of the tokens from ``start`` on."""
        new = rows[max(0, self._next - start) : max(0, self._prompt - start)]
        if not len(new):
            return
        if self._kind == LAST:
            self._sum = new[-1].astype(np.float64)
        else:
            total = new.sum(axis=0, dtype=np.float64)
            self._sum = self._sum + total if self._next else total
        self._next = min(start + len(rows), self._prompt)

    @property
    def result(self) -> np.ndarray:
        """float32 [hidden], after all tokens."""
        assert self._next == self._prompt, "tokens of the prompt are missing"
        found = self._sum if self._kind == LAST else self._sum / self._prompt
        return found.astype(np.float32)
