"""How recurrent states go back: to a copy from before the latest tokens, which are then fed again in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from hybridge.artifact.errors import RequestError

SnapshotT = TypeVar("SnapshotT")


class Rollback(Generic[SnapshotT]):
    """A snapshot of the states before the first tokens after ``forget``, and all columns that were fed since."""

    def __init__(self) -> None:
        self.start = 0
        self._snapshot: SnapshotT | None = None
        self._ids: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []

    def before(self, capture: Callable[[], SnapshotT], column: int, ids: np.ndarray, tokens: np.ndarray | None) -> None:
        """Note that ``ids`` [rows, q], of which ``tokens`` are not padding, are about to be fed from ``column`` on."""
        if self._snapshot is None:
            self.start, self._snapshot = column, capture()
        self._ids.append(ids.copy())
        self._tokens.append(np.ones(ids.shape, bool) if tokens is None else tokens)

    def rewind(self, restore: Callable[[SnapshotT], None], column: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Restore the snapshot; the ids and tokens to feed again so that ``column`` columns are there.

        RequestError when the snapshot was taken later than that.
        """
        if self._snapshot is None or column < self.start:
            raise RequestError(
                f"expected to go back to column {self.start} or later, the last snapshot of the recurrent states, "
                f"found {column}: crop after each forward, or keep a copy of the cache"
            )
        restore(self._snapshot)
        count = column - self.start
        if not count:
            return None
        return np.concatenate(self._ids, 1)[:, :count], np.concatenate(self._tokens, 1)[:, :count]

    def forget(self) -> None:
        """The next tokens start from new copies."""
        self._snapshot, self._ids, self._tokens = None, [], []


def recorded(rollback: Rollback[SnapshotT] | None, columns: int) -> Rollback[SnapshotT]:
    """``rollback`` of a cache of ``columns`` columns; RequestError where its states were not recorded."""
    if rollback is None:
        raise RequestError(
            f"expected a cache whose states were recorded, found one of {columns} columns that was not: recurrent "
            "states go back only from where activate_past_recording was called before the tokens"
        )
    return rollback
