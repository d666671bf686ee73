"""KV blocks of which a prefix cache has its own references: which of these no sequence uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from hybridge.runtime.blocks.block_pool import BlockPool


class CachedBlockPool(BlockPool):
    """``retain_cached`` and ``release_cached`` count the references of the cache.

    cached: blocks that the cache has references to; evictable: those of them that have no other reference.
    """

    def free_all(self) -> None:
        super().free_all()
        self._cached = [0] * self.num_blocks
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self.cached = 0

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    @property
    def available(self) -> int:
        return self.free + len(self._evictable)

    def cached_blocks(self) -> list[int]:
        """The blocks that the cache has references to."""
        return [block for block, count in enumerate(self._cached) if count]

    def longest_evictable(self) -> int:
        """The evictable block (there must be one) that no sequence has used for the longest time."""
        return next(iter(self._evictable))

    def retain(self, blocks: Iterable[int]) -> None:
        blocks = tuple(blocks)
        super().retain(blocks)
        for block in blocks:
            self._evictable.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        super().release(blocks)
        self._update(blocks)

    def retain_cached(self, blocks: Sequence[int]) -> None:
        """Add a reference of the cache to each of the blocks, all of which are in use."""
        super().retain(blocks)
        for block in blocks:
            self.cached += not self._cached[block]
            self._cached[block] += 1

    def release_cached(self, blocks: Sequence[int]) -> None:
        """Drop a reference of the cache to each of the blocks."""
        super().release(blocks)
        for block in reversed(blocks):
            self._cached[block] -= 1
            self.cached -= not self._cached[block]
        self._update(blocks)

    def _update(self, blocks: Sequence[int]) -> None:
        """Enter those that only the cache holds, the last one first, and remove the others."""
        cached, references, evictable = self._cached, self._references, self._evictable
        for block in reversed(blocks):
            if 0 < cached[block] == references[block]:
                evictable.setdefault(block)
            else:
                evictable.pop(block, None)
