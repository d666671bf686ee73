"""Masks whose arrays are known before they are computed."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.sampling import AllowedTokens
from tests.support.thirds import VOCAB, Thirds


class Announced:
    """``source``, of a vocabulary of ``vocab``, whose masks are written when they are asked for.

    Before that, their arrays allow every token.
    """

    def __init__(self, source: AllowedTokens, vocab: int) -> None:
        self._source, self._words = source, -(-vocab // 32)
        self._coming: np.ndarray | None = None

    def coming(self) -> np.ndarray:
        if self._coming is None:
            self._coming = np.full(self._words, 0xFFFFFFFF, np.uint32)
        return self._coming

    def mask(self) -> np.ndarray:
        found = self.coming()
        found[:] = self._source.mask().view(np.uint32)
        return found

    def accept(self, token: int) -> None:
        self._source.accept(token)
        self._coming = None


def announced_thirds() -> Announced:
    """``Thirds``, announced."""
    return Announced(Thirds(), VOCAB)
