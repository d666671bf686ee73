"""A mask that changes with each token."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.sampling.edits import mask_of

VOCAB = 97


class Thirds:
    """Every third of VOCAB tokens, beginning with another one after each token."""

    def __init__(self, first: int = 0) -> None:
        self._first = first

    def fork(self) -> Thirds:
        return type(self)(self._first)

    def mask(self) -> np.ndarray:
        return mask_of(np.arange(self._first, VOCAB, 3), VOCAB)

    def accept(self, token: int) -> None:
        self._first = (self._first + 1) % 3
