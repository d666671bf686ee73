"""Logits and states of a paged engine for one sequence, in any number of equal rows."""

from __future__ import annotations

from collections.abc import Sequence

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


def paged_states(engine: PagedEngine, sequence: np.ndarray) -> dict[str, np.ndarray]:
    """State and KV after all of ``sequence``, by pool name as in ``read_states``, in new pools."""
    pools = EqualRows(engine, 1, sequence.size, _BLOCK)
    for begin in range(0, sequence.size, engine.limits.max_tokens):
        _step(engine, pools, sequence, begin, min(sequence.size, begin + engine.limits.max_tokens), 1)
    slot = 0 if engine.config.recurrent_layers else None
    return read_states(engine, range(-(-sequence.size // _BLOCK)), slot, sequence.size)


def read_states(engine: PagedEngine, blocks: Sequence[int], slot: int | None, length: int) -> dict[str, np.ndarray]:
    """By pool name: KV [2, length, ...] that lies in ``blocks``, and the state in ``slot``."""
    arrays = engine.arrays_from_copy(engine.swap_out(list(blocks), [] if slot is None else [slot]))
    kv = {spec.name for spec in engine.config.bindings.states if spec.grows}
    return {
        name: array.reshape(array.shape[0], -1, *array.shape[3:])[:, :length] if name in kv else array[0]
        for name, array in arrays.items()
    }


def _step(engine: PagedEngine, pools: EqualRows, sequence: np.ndarray, begin: int, end: int, rows: int) -> np.ndarray:
    """Logits [vocab] of the last row after tokens ``begin`` to ``end``; as many rows as fit share a step."""
    at_once = max(1, engine.limits.max_tokens // (end - begin))
    for first in range(0, rows, at_once):
        count = min(rows - first, at_once)
        ids = np.tile(sequence[begin:end], (count, 1))
        result = engine.launch(pools.inputs(ids, begin, first))
    return result.logits(count - 1).copy()
