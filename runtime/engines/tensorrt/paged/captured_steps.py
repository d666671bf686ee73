"""The sizes of captured steps: few, so that every size has its own context and CUDA graph."""

from __future__ import annotations

import numpy as np

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize

# Columns of the smallest captured block table; larger ones double them as often as needed.
_FIRST_BLOCKS = 16


class CapturedSizes:
    """Sizes of steps whose rows have one token each, or up to ``StepBindings.row_tokens``.

    Captured block tables have all columns where attention is a plugin, which reads only the blocks that a row has.
    Native layers read every column: theirs have a power of two.
    """

    def __init__(self, bindings: StepBindings, native_attention: bool) -> None:
        self._bindings, self._native = bindings, native_attention

    def of(self, inputs: PackedInputs) -> StepSize | None:
        """The size of the captured step that runs ``inputs``; None where there is none."""
        longest = int(np.diff(inputs.query_start_loc).max())
        if longest > self._bindings.row_tokens:
            return None
        rows = self.padded_rows(len(inputs.seq_lens))
        blocks = self.padded_blocks(blocks_used(inputs))
        return self.size(rows, blocks, longest > 1)

    def size(self, rows: int, blocks: int, drafts: bool) -> StepSize:
        """The size with a bucket of ``rows``. drafts: rows have several tokens, and one row of padding follows them."""
        if not drafts:
            return StepSize(rows, rows, blocks, rows)
        tokens = rows * self._bindings.row_tokens
        return StepSize(tokens + 1, rows + 1, blocks, rows * self._bindings.row_logits)

    def padded_rows(self, rows: int) -> int:
        """The smallest bucket with room for ``rows``."""
        return next(bucket for bucket in self._bindings.buckets if bucket >= rows)

    def padded_blocks(self, blocks: int) -> int:
        """Columns of the captured block table with room for ``blocks``."""
        most = self._bindings.largest.blocks
        if not self._native:
            return most
        columns = _FIRST_BLOCKS
        while columns < blocks:
            columns *= 2
        return min(columns, most)

    @property
    def all_blocks(self) -> tuple[int, ...]:
        """Every number of columns."""
        found = [self.padded_blocks(1)]
        while found[-1] < self._bindings.largest.blocks:
            found.append(self.padded_blocks(found[-1] + 1))
        return tuple(found)


def blocks_used(inputs: PackedInputs) -> int:
    """The columns of the block table up to the last that some row uses; at least 1."""
    table = inputs.block_table
    used = np.flatnonzero((table >= 0).any(axis=0))
    return int(used[-1]) + 1 if used.size else 1
