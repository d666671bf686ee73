"""Hidden states of one sequence between the step that computed them and their use."""

from __future__ import annotations

import numpy as np


class HiddenStates:
    """Of the positions from ``begin`` on, without a gap; what came again replaces what was there."""

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._parts = np.empty((0, 0), np.float32)

    def put(self, start: int, rows: np.ndarray) -> None:
        """Take ``rows`` [n, hidden] of the positions from ``start`` on; behind a gap they are of no use."""
        if start > self.end:
            return
        kept = max(0, start - self.begin)
        rows = rows[max(0, self.begin - start) :]
        if not len(rows):
            return
        self._parts = np.concatenate((self._parts[:kept], rows)) if kept else rows.copy()
        self.end = self.begin + len(self._parts)

    def has(self, begin: int, end: int) -> bool:
        """Whether those of the positions from ``begin`` to before ``end`` are there."""
        return self.begin <= begin and end <= self.end

    def get(self, begin: int, end: int) -> np.ndarray:
        """Of the positions from ``begin`` to before ``end``, which are there."""
        return self._parts[begin - self.begin : end - self.begin]

    def drop(self, position: int) -> None:
        """Forget those before ``position``, at most all."""
        position = min(position, self.end)
        if position > self.begin:
            self._parts = self._parts[position - self.begin :].copy()
            self.begin = position
