"""Split a step into runs of contiguous rows.

Every run is a slice of the batch, and the rows of a state buffer are contiguous, so a run works on views. Rows
without new tokens belong to no run: their states do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A run reads all weights, however few tokens it has. That takes as long as this many additional tokens,
_TOKENS_PER_RUN = 16
# and is hidden by the arithmetic of a run of this many tokens: a longer one only needs more memory.
_FULL_RUN = 256


@dataclass(frozen=True)
class RowRun:
    """Rows ``start`` to ``stop`` (exclusive), ``tokens`` new tokens each; where ``padded``, some rows have fewer."""

    start: int
    stop: int
    tokens: int
    padded: bool = False

    @property
    def rows(self) -> int:
        return self.stop - self.start


def row_runs(context_lengths: np.ndarray, past_lengths: np.ndarray) -> tuple[RowRun, ...]:
    """The runs of one step, in row order.

    Adjacent rows with one new token each share a run, and so do short prompts if padding them costs less than separate
    runs. A row with a past and several new tokens runs alone: the attention kernel computes later chunks of a prompt
    one row at a time.
    """
    new, past = context_lengths.tolist(), past_lengths.tolist()
    runs: list[RowRun] = []
    for row, tokens in enumerate(new):
        start = runs[-1].start if runs and runs[-1].stop == row else row
        if tokens and start < row and _share_a_run(new[start : row + 1], past[start : row + 1]):
            longest = max(runs[-1].tokens, tokens)
            runs[-1] = RowRun(start, row + 1, longest, padded=min(new[start : row + 1]) < longest)
        elif tokens:
            runs.append(RowRun(row, row + 1, tokens))
    return tuple(runs)


def _share_a_run(new: list[int], past: list[int]) -> bool:
    if max(new) == 1:
        return True
    size = max(new) * len(new)
    padding = size - sum(new)
    return size <= _FULL_RUN and padding <= _TOKENS_PER_RUN * (len(new) - 1) and not any(past)


def token_runs(rows: Sequence[int]) -> tuple[RowRun, ...]:
    """The runs of a step with one token for each of ``rows`` (ascending)."""
    starts = [row for row in rows if row - 1 not in rows]
    stops = [row + 1 for row in rows if row + 1 not in rows]
    return tuple(RowRun(start, stop, 1) for start, stop in zip(starts, stops, strict=True))
