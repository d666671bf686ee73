"""Where sequences get their blocks from: without, or with, the content of blocks that others computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from runtime.blocks.block_pool import BlockPool
from runtime.blocks.sequence_memory import SequenceMemory


class BlockAllocator(ABC):
    """Takes blocks from a pool. ``free`` counts all that can be taken, those with reusable content included."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

    @property
    def free(self) -> int:
        """Blocks that ``allocate`` can give."""
        return self.pool.free

    @abstractmethod
    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks of undefined content; PoolError when fewer are free."""

    @abstractmethod
    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each of the blocks of a sequence, given from its first to its last."""

    @abstractmethod
    def adopt(self, memory: SequenceMemory) -> None:
        """Give an empty ``memory`` the blocks of known content that its tokens begin with.

        At least one token is left to compute, whose logits the sequence needs.
        """

    @abstractmethod
    def publish(self, memory: SequenceMemory) -> None:
        """Make the full blocks of ``memory`` known to those who come later."""

    @abstractmethod
    def cached(self) -> Iterable[int]:
        """Free blocks whose content can still be adopted."""


class NaiveAllocator(BlockAllocator):
    """Every sequence computes all its blocks."""

    def allocate(self, count: int) -> list[int]:
        return self.pool.allocate(count)

    def release(self, blocks: Sequence[int]) -> None:
        self.pool.release(blocks)

    def adopt(self, memory: SequenceMemory) -> None:
        pass

    def publish(self, memory: SequenceMemory) -> None:
        pass

    def cached(self) -> Iterable[int]:
        return ()
