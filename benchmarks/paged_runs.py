"""Logits and states of a paged engine for one sequence, in any number of equal rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hybridge.runtime.engines.paged import PackedInputs, PagedEngine, PoolSizes

_BLOCK = 16


def paged_logits(engine: PagedEngine, sequence: np.ndarray, tokens: int, rows: int) -> list[np.ndarray]:
    """Logits [vocab] after ``tokens`` of ``sequence``, fed in two chunks, and after each token that follows.

    The logits are those of the last row. The engine gets pools of its own for it.
    """
    blocks = -(-sequence.size // _BLOCK)
    recurrent = bool(engine.config.recurrent_layers)
    engine.allocate_pools(PoolSizes(rows * blocks, _BLOCK, rows * recurrent))
    if recurrent:
        engine.zero_slots(range(rows))
    cut, found = max(1, tokens // 3), []
    bounds = [(0, cut), (cut, tokens), *((at, at + 1) for at in range(tokens, sequence.size))]
    for begin, end in bounds:
        logits = _step(engine, sequence, begin, end, rows, blocks)
        if end >= tokens:
            found.append(logits)
    return found


def candidate_logits(engine: PagedEngine, sequence: np.ndarray, tokens: int) -> list[np.ndarray]:
    """As ``paged_logits``, one row, but what follows ``tokens`` comes as 1, 2, ... candidates, of which half stay."""
    blocks, columns = -(-sequence.size // _BLOCK), 1 + engine.config.speculative_tokens
    engine.allocate_pools(PoolSizes(blocks, _BLOCK, columns))
    engine.zero_slots(range(columns))
    found = [_step(engine, sequence, 0, tokens, 1, blocks)]
    accepted, count = 1, 0
    while tokens < sequence.size:
        count = count % columns + 1
        new = sequence[tokens : tokens + count]
        inputs = decode_inputs(engine, 1, new.size, tokens, columns)
        inputs = replace(inputs, input_ids=new.astype(np.int64), num_accepted_tokens=np.array([accepted], np.int32))
        result = engine.launch(inputs)
        accepted = (new.size + 1) // 2
        found += [result.logits(index).copy() for index in range(accepted)]
        tokens += accepted
    return found


def decode_inputs(engine: PagedEngine, rows: int, tokens: int, past: int, columns: int) -> PackedInputs:
    """A step of ``rows`` rows of ``tokens`` tokens each after ``past``, in pools of their own from the first place on.

    columns: slots of each row, 0 for a step without candidates.
    """
    blocks = -(-(past + tokens) // _BLOCK)
    own, positions = np.arange(rows), np.arange(past, past + tokens)
    slots = np.arange(rows * max(1, columns), dtype=np.int32)
    if not engine.config.recurrent_layers:
        slots[:] = -1
    return PackedInputs(
        np.arange(1, rows * tokens + 1, dtype=np.int64),
        np.tile(positions, rows),
        np.arange(0, rows * tokens + 1, tokens, dtype=np.int32),
        np.full(rows, past + tokens, np.int32),
        (own[:, None] * blocks + np.arange(blocks)).astype(np.int32),
        (own[:, None] * blocks * _BLOCK + positions).reshape(-1).astype(np.int32),
        slots.reshape(rows, columns) if columns else slots,
        np.arange(rows * tokens, dtype=np.int32),
        np.ones(rows, np.int32) if columns else None,
    )


def paged_states(engine: PagedEngine, sequence: np.ndarray) -> dict[str, np.ndarray]:
    """State and KV after all of ``sequence``, by pool name as in ``read_states``, in pools of its own."""
    blocks, recurrent = -(-sequence.size // _BLOCK), bool(engine.config.recurrent_layers)
    engine.allocate_pools(PoolSizes(blocks, _BLOCK, int(recurrent)))
    if recurrent:
        engine.zero_slots([0])
    for begin in range(0, sequence.size, engine.limits.max_tokens):
        _step(engine, sequence, begin, min(sequence.size, begin + engine.limits.max_tokens), 1, blocks)
    return read_states(engine, range(blocks), 0 if recurrent else None, sequence.size)


def read_states(engine: PagedEngine, blocks: Sequence[int], slot: int | None, length: int) -> dict[str, np.ndarray]:
    """By pool name: KV [2, length, ...] that lies in ``blocks``, and the state in ``slot``."""
    arrays = engine.arrays_from_copy(engine.swap_out(list(blocks), [] if slot is None else [slot]))
    kv = {spec.name for spec in engine.config.bindings.states if spec.grows}
    return {
        name: array.reshape(array.shape[0], -1, *array.shape[3:])[:, :length] if name in kv else array[0]
        for name, array in arrays.items()
    }


def _step(engine: PagedEngine, sequence: np.ndarray, begin: int, end: int, rows: int, blocks: int) -> np.ndarray:
    """Logits [vocab] of the last row after tokens ``begin`` to ``end``; as many rows as fit share a step."""
    positions, at_once = np.arange(begin, end), max(1, engine.limits.max_tokens // (end - begin))
    last = np.zeros(0, np.float32)
    for first in range(0, rows, at_once):
        own = np.arange(first, min(rows, first + at_once))
        bounds = np.arange(own.size + 1, dtype=np.int32) * np.int32(end - begin)
        result = engine.launch(
            PackedInputs(
                np.tile(sequence[begin:end], own.size).astype(np.int64),
                np.tile(positions, own.size),
                bounds,
                np.full(own.size, end, np.int32),
                (own[:, None] * blocks + np.arange(blocks)).astype(np.int32),
                (own[:, None] * blocks * _BLOCK + positions).reshape(-1).astype(np.int32),
                (own if engine.config.recurrent_layers else own * 0 - 1).astype(np.int32),
                bounds[1:] - 1,
            )
        )
        last = result.logits(own.size - 1).copy()
    return last
