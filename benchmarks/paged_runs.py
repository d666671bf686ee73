"""Logits of a paged engine for one sequence, in any number of equal rows."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.paged import PagedEngine

_BLOCK = 16


def paged_logits(engine: PagedEngine, sequence: np.ndarray, tokens: int, rows: int) -> list[np.ndarray]:
    """Logits [vocab] after ``tokens`` of ``sequence``, fed in two chunks, and after each token that follows.

    The logits are those of the last row. The engine gets new pools for it.
    """
    pools = EqualRows(engine, rows, sequence.size, _BLOCK)
    cut = max(1, tokens // 3)
    _step(engine, pools, sequence, 0, cut, rows)
    bounds = [(cut, tokens), *((at, at + 1) for at in range(tokens, sequence.size))]
    return [_step(engine, pools, sequence, begin, end, rows) for begin, end in bounds]


def _step(engine: PagedEngine, pools: EqualRows, sequence: np.ndarray, begin: int, end: int, rows: int) -> np.ndarray:
    """Logits [vocab] of the last row after tokens ``begin`` to ``end``; as many rows as fit share a step."""
    at_once = max(1, engine.limits.max_tokens // (end - begin))
    for first in range(0, rows, at_once):
        count = min(rows - first, at_once)
        ids = np.tile(sequence[begin:end], (count, 1))
        result = engine.launch(pools.inputs(ids, begin, first))
    return result.logits(count - 1).copy()
