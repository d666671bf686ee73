"""Rows as transformers pads them and as engines want them: tokens first, in chunks that an engine takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


class RowPacking:
    """``ids`` [rows, q] of which ``tokens`` [rows, q] bool are not padding (None: all of them)."""

    def __init__(self, ids: np.ndarray, tokens: np.ndarray | None) -> None:
        if tokens is not None and tokens.all():
            tokens = None
        self._ids = ids
        self._columns = None if tokens is None else [np.flatnonzero(row) for row in tokens]
        self._counts = np.full(len(ids), ids.shape[1]) if tokens is None else tokens.sum(axis=1)

    def chunks(self, length: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(first token, right-padded ids [rows, at most length], valid tokens of each row int32), in order."""
        for start in range(0, int(self._counts.max()), length):
            counts = np.clip(self._counts - start, 0, length).astype(np.int32)
            stop = start + int(counts.max())
            if self._columns is None:
                yield start, self._ids[:, start:stop], counts
                continue
            chunk = np.zeros((len(self._ids), stop - start), np.int64)
            for row, columns in enumerate(self._columns):
                chunk[row, : counts[row]] = self._ids[row, columns[start:stop]]
            yield start, chunk, counts

    def place(self, target: np.ndarray, start: int, values: np.ndarray, counts: np.ndarray) -> None:
        """Put the ``values`` [rows, length, width] of the chunk that began at ``start`` where its tokens came from."""
        if self._columns is None:
            target[:, start : start + values.shape[1]] = values
            return
        for row, columns in enumerate(self._columns):
            target[row, columns[start : start + counts[row]]] = values[row, : counts[row]]
