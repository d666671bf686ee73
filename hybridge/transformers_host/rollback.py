"""How recurrent states go back: to a copy from before the latest tokens, which are then fed again in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from hybridge.artifact.errors import RequestError

KeptT = TypeVar("KeptT")


class Rollback(Generic[KeptT]):
    """States kept before the first tokens after ``forget``, and all columns that were fed since."""

    def __init__(self) -> None:
        self.start = 0
        self._kept: KeptT | None = None
        self._ids: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []

    def before(self, capture: Callable[[], KeptT], column: int, ids: np.ndarray, tokens: np.ndarray | None) -> None:
        """Note that ``ids`` [rows, q], of which ``tokens`` are no padding, are about to be fed from ``column`` on."""
        if self._kept is None:
            self.start, self._kept = column, capture()
        self._ids.append(ids.copy())
        self._tokens.append(np.ones(ids.shape, bool) if tokens is None else tokens)

    def rewind(self, restore: Callable[[KeptT], None], column: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Restore what was kept; the ids and tokens to feed again so that ``column`` columns are there.

        RequestError when what was kept is younger than that.
        """
        if self._kept is None or column < self.start:
            raise RequestError(
                f"expected to go back to column {self.start} or later, the last point where the recurrent states were "
                f"kept, found {column}: crop after each forward, or keep a copy of the cache"
            )
        restore(self._kept)
        count = column - self.start
        if not count:
            return None
        return np.concatenate(self._ids, 1)[:, :count], np.concatenate(self._tokens, 1)[:, :count]

    def forget(self) -> None:
        """The next tokens start from new copies."""
        self._kept, self._ids, self._tokens = None, [], []
