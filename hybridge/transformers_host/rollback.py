"""How recurrent states go back: to a snapshot from before the latest tokens, which are then fed again in part."""

from __future__ import annotations

import numpy as np

from artifact.errors import RequestError
from runtime.caches import HybridCacheManager
from runtime.caches.snapshot import MambaSnapshot


class Rollback:
    """A snapshot taken before the first tokens after ``forget``, and all columns that were fed since."""

    def __init__(self) -> None:
        self.start = 0
        self._rows: list[MambaSnapshot] | None = None
        self._ids: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []

    def before(self, states: HybridCacheManager, column: int, ids: np.ndarray, tokens: np.ndarray | None) -> None:
        """Note that ``ids`` are about to be fed from ``column`` on."""
        if self._rows is None:
            self.start, self._rows = column, [states.mamba.capture(row) for row in range(states.rows)]
        self._ids.append(ids.copy())
        self._tokens.append(np.ones(ids.shape, bool) if tokens is None else tokens)

    def rewind(self, states: HybridCacheManager, column: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Restore the snapshot; the ids and tokens to feed again so that ``column`` columns are there.

        RequestError when the snapshot is younger than that.
        """
        if self._rows is None or column < self.start:
            raise RequestError(
                f"expected to go back to column {self.start} or later, the last point where the recurrent states were "
                f"kept, found {column}: crop after each forward, or keep a copy of the cache"
            )
        for row, snapshot in enumerate(self._rows):
            states.mamba.restore(row, snapshot)
        if column == self.start:
            return None
        count = column - self.start
        return np.concatenate(self._ids, 1)[:, :count], np.concatenate(self._tokens, 1)[:, :count]

    def forget(self) -> None:
        """The next tokens start from a new snapshot."""
        self._rows, self._ids, self._tokens = None, [], []
