"""Split one step into runs of neighbouring rows that need no padding.

Every run is a slice of the batch, and the rows of a state buffer are contiguous, so a run works on views. Rows
without new tokens belong to no run: nothing touches their states.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class RowRun(NamedTuple):
    """Rows ``start`` to ``stop`` (exclusive), ``tokens`` new tokens each. Looked up at every step, so a plain tuple."""

    start: int
    stop: int
    tokens: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def row_runs(context_lengths: np.ndarray, past_lengths: np.ndarray) -> tuple[RowRun, ...]:
    """The runs of one step, in row order.

    Rows share a run when they are neighbours with equally many new tokens; with several tokens also only while
    none has a past, since the attention kernel takes later chunks of a prompt one row at a time.
    """
    runs: list[RowRun] = []
    for row, tokens in enumerate(context_lengths.tolist()):
        if tokens == 0:
            continue
        last = runs[-1] if runs else None
        joins = last is not None and last.stop == row and last.tokens == tokens
        if joins and tokens > 1 and (past_lengths[row] or past_lengths[row - 1]):
            joins = False
        if joins and last is not None:
            runs[-1] = RowRun(last.start, row + 1, tokens)
        else:
            runs.append(RowRun(row, row + 1, tokens))
    return tuple(runs)


@lru_cache(maxsize=256)
def token_runs(rows: tuple[int, ...]) -> tuple[RowRun, ...]:
    """The runs of a step with one token for each of ``rows`` (ascending), which repeats from step to step."""
    starts = [row for row in rows if row - 1 not in rows]
    stops = [row + 1 for row in rows if row + 1 not in rows]
    return tuple(RowRun(start, stop, 1) for start, stop in zip(starts, stops, strict=True))
