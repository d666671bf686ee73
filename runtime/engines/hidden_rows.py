"""Hidden states of the last step's tokens, which a multi-token prediction head reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

NOWHERE = 0
"""An unused row for values that are discarded."""


class HiddenRows(ABC):
    """Hidden states [slots, hidden] after the last layer, before the norm that follows.

    The slots 1 to ``reserved`` are the caller's. The tokens of the engine's last step are at ``first`` and on, in
    order, until its next step.
    """

    def __init__(self, reserved: int) -> None:
        self.reserved = reserved

    @property
    def first(self) -> int:
        """Place of the first token of a step."""
        return self.reserved + 1

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy each source place over its target. No target is a source or comes twice."""

    @abstractmethod
    def read(self, slots: Sequence[int]) -> np.ndarray:
        """A copy of these slots, float32 [n, hidden], for diagnosis."""


class ArrayRows(HiddenRows):
    """Rows in host memory: ``array`` [slots, hidden] float32."""

    def __init__(self, reserved: int, tokens: int, hidden: int) -> None:
        """With room for steps of ``tokens`` tokens."""
        super().__init__(reserved)
        self.array = np.zeros((1 + reserved + tokens, hidden), np.float32)

    @property
    def of_step(self) -> np.ndarray:
        """The part [tokens, hidden] that a step writes."""
        return self.array[self.first :]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.array[list(targets)] = self.array[list(sources)]

    def read(self, slots: Sequence[int]) -> np.ndarray:
        return self.array[list(slots)]
