"""Logits and states of a paged engine for one sequence, in any number of equal rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs, PagedEngine, PoolSizes

_BLOCK = 16


def allocate(engine: PagedEngine, rows: int, tokens: int) -> None:
    """New pools for ``rows`` rows of ``tokens`` tokens, with an empty state each where the model has states."""
    states = rows if engine.config.recurrent_layers else 0
    engine.allocate_pools(PoolSizes(rows * -(-tokens // _BLOCK), _BLOCK, states))
    engine.zero_slots(range(states))


def step_inputs(engine: PagedEngine, ids: np.ndarray, past: int, total: int, first_row: int = 0) -> PackedInputs:
    """A step of ``ids`` [rows, tokens] after ``past`` tokens, with logits after the last of each row.

    total: tokens that each row has blocks for. first_row: row of the pools that row 0 of ``ids`` is.
    """
    rows, tokens = ids.shape
    blocks, own, positions = -(-total // _BLOCK), first_row + np.arange(rows), np.arange(past, past + tokens)
    states = own.astype(np.int32)
    if not engine.config.recurrent_layers:
        states[:] = -1
    return PackedInputs(
        ids.reshape(-1).astype(np.int64),
        np.tile(positions, rows),
        np.arange(0, rows * tokens + 1, tokens, dtype=np.int32),
        np.full(rows, past + tokens, np.int32),
        (own[:, None] * blocks + np.arange(blocks)).astype(np.int32),
        (own[:, None] * blocks * _BLOCK + positions).reshape(-1).astype(np.int32),
        states,
        np.arange(tokens - 1, rows * tokens, tokens, dtype=np.int32),
    )


def paged_logits(engine: PagedEngine, sequence: np.ndarray, tokens: int, rows: int) -> list[np.ndarray]:
    """Logits [vocab] after ``tokens`` of ``sequence``, fed in two chunks, and after each token that follows.

    The logits are those of the last row. The engine gets new pools for it.
    """
    allocate(engine, rows, sequence.size)
    cut = max(1, tokens // 3)
    _step(engine, sequence, 0, cut, rows)
    bounds = [(cut, tokens), *((at, at + 1) for at in range(tokens, sequence.size))]
    return [_step(engine, sequence, begin, end, rows) for begin, end in bounds]


def paged_states(engine: PagedEngine, sequence: np.ndarray) -> dict[str, np.ndarray]:
    """State and KV after all of ``sequence``, by pool name as in ``read_states``, in new pools."""
    allocate(engine, 1, sequence.size)
    for begin in range(0, sequence.size, engine.limits.max_tokens):
        _step(engine, sequence, begin, min(sequence.size, begin + engine.limits.max_tokens), 1)
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


def _step(engine: PagedEngine, sequence: np.ndarray, begin: int, end: int, rows: int) -> np.ndarray:
    """Logits [vocab] of the last row after tokens ``begin`` to ``end``; as many rows as fit share a step."""
    at_once = max(1, engine.limits.max_tokens // (end - begin))
    for first in range(0, rows, at_once):
        count = min(rows - first, at_once)
        ids = np.tile(sequence[begin:end], (count, 1))
        result = engine.launch(step_inputs(engine, ids, begin, sequence.size, first))
    return result.logits(count - 1).copy()
