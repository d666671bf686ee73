"""KV blocks with reference counts: which are free, and how many holders each of the others has."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from hybridge.runtime.blocks.errors import PoolError


class BlockPool:
    """Blocks 0 to num_blocks - 1. Free blocks wait in a queue: the longest free is taken next."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_all()

    def free_all(self) -> None:
        """Drop all references."""
        self._references = [0] * self.num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.num_blocks))

    @property
    def free(self) -> int:
        """Blocks without a holder."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Blocks that are free, or that a cache can evict."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - len(self._free)

    def references(self, block: int) -> int:
        """Holders of ``block``."""
        return self._references[block]

    def in_use(self, block: int) -> bool:
        """Whether the block has a holder."""
        return self._references[block] > 0

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, each with one reference; PoolError when fewer are free."""
        if count > len(self._free):
            raise PoolError(f"expected {count} free blocks, found {len(self._free)}")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def take(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of the blocks, free or not."""
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)

    def retain(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of the blocks; PoolError for a free one."""
        for block in blocks:
            if not self._references[block]:
                raise PoolError(f"expected a block in use, found the free block {block}")
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; of those that become free, the last one given is taken first again."""
        for block in reversed(blocks):
            count = self._references[block] - 1
            if count < 0:
                raise PoolError(f"expected a block in use, found the free block {block}: it was released twice")
            self._references[block] = count
            if not count:
                self._free[block] = None

    def check_integrity(self, references: Iterable[int]) -> None:
        """PoolError unless ``references``, one entry for each reference that anyone has, is what the pool counts."""
        counts = [0] * self.num_blocks
        for block in references:
            counts[block] += 1
        for block, (expected, found) in enumerate(zip(counts, self._references, strict=True)):
            if expected != found:
                raise PoolError(f"block {block}: {expected} holders, but {found} references are counted")
            if (found == 0) != (block in self._free):
                raise PoolError(f"block {block}: {found} references, but {'' if found else 'not '}in the free queue")
