"""Sequences of equal length in pools of their own: row r has the r-th slot and the r-th run of blocks."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes


class EqualRows:
    """New pools for ``rows`` sequences of at most ``tokens`` tokens, whose states are empty."""

    def __init__(self, engine: PagedEngine, rows: int, tokens: int, block_size: int) -> None:
        self._has_kv, self._has_state = bool(engine.config.kv_layers), bool(engine.config.recurrent_layers)
        self._size, self._blocks_each = block_size, -(-tokens // block_size)
        engine.allocate_pools(PoolSizes(rows * self._blocks_each * self._has_kv, block_size, rows * self._has_state))
        if self._has_state:
            engine.zero_slots(range(rows))

    def inputs(self, ids: np.ndarray, past: int, first_row: int = 0, wants_logits: bool = True) -> PackedInputs:
        """A step of ``ids`` [rows, tokens] after ``past`` tokens, with logits after the last of each row.

        first_row: row of the pools that row 0 of ``ids`` is. wants_logits: False for a step without logits.
        """
        rows, tokens = ids.shape
        own = np.arange(first_row, first_row + rows, dtype=np.int32)
        positions, bounds = np.arange(past, past + tokens), np.arange(rows + 1, dtype=np.int32) * np.int32(tokens)
        none = np.full((rows, 1), -1, np.int32)
        table, slots = none, np.full(rows * tokens, -1, np.int32)
        if self._has_kv:
            first_blocks = own[:, None] * self._blocks_each
            table = (first_blocks + np.arange(-(-(past + tokens) // self._size))).astype(np.int32)
            slots = (first_blocks * self._size + positions).reshape(-1).astype(np.int32)
        return PackedInputs(
            ids.reshape(-1).astype(np.int64),
            np.tile(positions, rows),
            bounds,
            np.full(rows, past + tokens, np.int32),
            table,
            slots,
            own if self._has_state else none[:, 0],
            bounds[1:] - 1 if wants_logits else bounds[:0],
        )
