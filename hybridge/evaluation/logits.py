"""Logits of every scored position of a window, from whatever computes a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np


class LogitsSource(Protocol):
    """A model. name: what computes it. most_tokens: of one window, None where there is no limit."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def most_tokens(self) -> int | None: ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user."""

    def logits(self, tokens: np.ndarray, first: int, rows: int) -> Iterator[np.ndarray]:
        """Logits [n, vocab] float32 after ``tokens`` [T], a new sequence, from the ``first`` to the last but one.

        They come in blocks of ``rows``, the last may be smaller; each is valid until the next one.
        """

    def close(self) -> None:
        """Release the model; calling it twice is allowed."""
