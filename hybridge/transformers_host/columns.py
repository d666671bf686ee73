"""Which columns of a cache hold a token of each row. transformers pads batches, mostly on the left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FIRST_CAPACITY = 256


class Columns:
    """A boolean matrix [rows, count] that grows to the right: True where the row has a token, False for padding."""

    def __init__(self, rows: int) -> None:
        self.count = 0
        self.padded = False
        self._tokens = np.ones((rows, _FIRST_CAPACITY), bool)

    @property
    def tokens(self) -> np.ndarray:
        """The matrix, a view that is valid until the next change."""
        return self._tokens[:, : self.count]

    def append(self, columns: int, tokens: np.ndarray | None) -> None:
        """Add ``columns`` columns: ``tokens`` [rows, columns], or no padding at all."""
        end = self.count + columns
        if end > self._tokens.shape[1]:
            grown = np.ones((len(self._tokens), max(end, 2 * self._tokens.shape[1])), bool)
            grown[:, : self.count] = self.tokens
            self._tokens = grown
        if tokens is not None and not tokens.all():
            self._tokens[:, self.count : end] = tokens
            self.padded = True
        self.count = end

    def crop(self, columns: int) -> None:
        """Forget the last ``columns`` columns."""
        start = self.count - columns
        self._tokens[:, start : self.count] = True
        self.count = start

    def select(self, rows: Sequence[int]) -> None:
        """Keep only ``rows``, in the order given, each as often as it is given."""
        self._tokens = self._tokens[list(rows)]
