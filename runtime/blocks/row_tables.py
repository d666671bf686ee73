"""The block tables of all running sequences in one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.artifact.errors import EngineError


class RowTables:
    """``array`` [rows, max_blocks] int32: row r is the block table of the sequence that has row r; -1: no block."""

    def __init__(self, rows: int, max_blocks: int) -> None:
        try:
            self.array = np.full((rows, max_blocks), -1, np.int32)
        except MemoryError:
            raise EngineError(
                f"expected memory for tables of {rows} rows of {max_blocks} blocks, found too little: lower "
                "`max_batch_size` or `max_seq_len`"
            ) from None
        self.free_all()

    def free_all(self) -> None:
        """Give all rows back."""
        self.array[:] = -1
        self._free = list(range(len(self.array)))[::-1]

    @property
    def free(self) -> int:
        """Rows without a sequence."""
        return len(self._free)

    def assign(self, blocks: Sequence[int]) -> int:
        """Take a free row (there must be one) for a sequence with these blocks."""
        row = self._free.pop()
        self.array[row, : len(blocks)] = blocks
        return row

    def release(self, row: int) -> None:
        """Give the row back."""
        self.array[row] = -1
        self._free.append(row)
