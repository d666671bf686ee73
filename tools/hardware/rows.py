"""Sequences of any lengths in their own pools: row r has the r-th slot and the r-th run of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes

BLOCK_SIZE = 16


class Rows:
    """New pools of ``engine`` for ``count`` sequences of at most ``tokens`` tokens; ``lengths``: tokens so far."""

    def __init__(self, engine: PagedEngine, count: int, tokens: int) -> None:
        config = engine.config
        self._engine, self._has_kv, self._has_state = engine, bool(config.kv_layers), bool(config.recurrent_layers)
        self._size = engine.block_size(BLOCK_SIZE)
        self._blocks = -(-tokens // self._size)
        blocks, slots = count * self._blocks * self._has_kv, count * self._has_state
        engine.allocate_pools(PoolSizes(blocks, self._size, slots))
        if self._has_state:
            engine.zero_slots(range(count))
        self.lengths = np.zeros(count, np.int64)

    def step(self, new: Sequence[np.ndarray]) -> np.ndarray:
        """Feed the tokens ``new`` of each row, some of which may have none; logits [rows with tokens, vocab]."""
        rows = np.array([row for row, ids in enumerate(new) if len(ids)])
        counts = np.array([len(new[row]) for row in rows])
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate([self.lengths[row] + np.arange(len(new[row])) for row in rows])
        self.lengths[rows] += counts
        table, mapping = np.full((len(rows), 1), -1, np.int32), np.full(len(positions), -1, np.int32)
        if self._has_kv:
            used = -(-int(self.lengths[rows].max()) // self._size)
            first = rows[:, None] * self._blocks
            table = (first + np.minimum(np.arange(used), self._blocks - 1)).astype(np.int32)
            mapping = (np.repeat(first[:, 0], counts) * self._size + positions).astype(np.int32)
        slots = rows.astype(np.int32) if self._has_state else np.full(len(rows), -1, np.int32)
        return self._engine.step(
            PackedInputs(
                np.concatenate([np.asarray(new[row], np.int64) for row in rows]),
                positions.astype(np.int64),
                bounds,
                self.lengths[rows].astype(np.int32),
                table,
                mapping,
                slots,
                bounds[1:] - 1,
            )
        )

    def states(self) -> dict[str, np.ndarray]:
        """The states of the rows by graph input; of keys and values the positions that hold tokens.

        Keys and values in e4m3 are left out: their scales are powers of two, which a rounding error may double.
        """
        count, config = len(self.lengths), self._engine.config
        blocks, slots = range(count * self._blocks * self._has_kv), range(count * self._has_state)
        arrays = self._engine.arrays_from_copy(self._engine.swap_out(blocks, slots))
        found = {}
        for spec in config.bindings.states:
            if not spec.grows:
                found[spec.name] = arrays[spec.name].reshape(count, -1)
            elif not config.has_kv_scales:
                array = arrays[spec.name]
                paired = array.reshape(array.shape[0], count, -1, *array.shape[3:])
                found[spec.name] = np.concatenate([paired[:, row, :n].ravel() for row, n in enumerate(self.lengths)])
        return found
