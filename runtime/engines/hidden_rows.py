"""Hidden states of the last step's tokens, which a multi-token prediction head reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

NOWHERE = 0
"""An unused row for values that are discarded."""


class HiddenRows(ABC):
    """Hidden states [places, hidden] after the last layer, before the norm that follows.

    The places 1 to ``kept`` are the caller's. The tokens of the engine's last step lie at ``first`` and on, in their
    order, until its next step.
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept

    @property
    def first(self) -> int:
        """Place of the first token of a step."""
        return self.kept + 1

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy each source place over its target. No target is a source or comes twice."""

    @abstractmethod
    def read(self, places: Sequence[int]) -> np.ndarray:
        """A copy of these places, float32 [n, hidden], for diagnosis."""


class ArrayRows(HiddenRows):
    """Rows in host memory: ``array`` [places, hidden] float32."""

    def __init__(self, kept: int, tokens: int, hidden: int) -> None:
        """With room for steps of ``tokens`` tokens."""
        super().__init__(kept)
        self.array = np.zeros((1 + kept + tokens, hidden), np.float32)

    @property
    def of_step(self) -> np.ndarray:
        """The part [tokens, hidden] that a step writes."""
        return self.array[self.first :]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.array[list(targets)] = self.array[list(sources)]

    def read(self, places: Sequence[int]) -> np.ndarray:
        return self.array[list(places)]
