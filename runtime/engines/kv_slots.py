"""Slots of the keys and values of tokens in the blocks of their rows."""

from __future__ import annotations

import numpy as np


def kv_slots(table: np.ndarray, rows: np.ndarray, indices: np.ndarray, block_size: int) -> np.ndarray:
    """slot_mapping, int32 [n], of the tokens ``indices`` [n] of ``rows`` [n], counted from the row's first
    block on; -1 where its line of the block table ``table`` [rows, blocks] has no block for it."""
    columns, offsets = np.divmod(indices, block_size)
    blocks = table[rows, np.minimum(columns, table.shape[1] - 1)]
    return np.where((blocks < 0) | (columns >= table.shape[1]), -1, blocks * block_size + offsets).astype(np.int32)
