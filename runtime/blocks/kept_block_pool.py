"""KV blocks of which a cache keeps some: which of these nobody else has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridge.runtime.blocks.block_pool import BlockPool


class KeptBlockPool(BlockPool):
    """``keep`` and ``drop`` are the references of a cache; ``idle`` counts the blocks that only the cache has."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._kept = [0] * num_blocks
        self.idle = self.kept = 0

    def retain(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            before = self._is_idle(block)
            super().retain((block,))
            self.idle += self._is_idle(block) - before

    def release(self, blocks: Sequence[int]) -> list[int]:
        freed = []
        for block in reversed(blocks):
            before = self._is_idle(block)
            freed += super().release((block,))
            self.idle += self._is_idle(block) - before
        return freed

    def keep(self, blocks: Sequence[int]) -> None:
        """Add a reference of the cache to each of the blocks."""
        for block in blocks:
            before = self._is_idle(block)
            super().retain((block,))
            self.kept += not self._kept[block]
            self._kept[block] += 1
            self.idle += self._is_idle(block) - before

    def drop(self, blocks: Sequence[int]) -> None:
        """Take back a reference of the cache to each of the blocks."""
        for block in reversed(blocks):
            before = self._is_idle(block)
            super().release((block,))
            self._kept[block] -= 1
            self.kept -= not self._kept[block]
            self.idle += self._is_idle(block) - before

    def _is_idle(self, block: int) -> bool:
        return 0 < self._kept[block] == self._references[block]
