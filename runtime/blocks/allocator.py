"""Where sequences get their blocks from: without, or with, the content of blocks that others computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory


class BlockAllocator(ABC):
    """Takes blocks from a pool. ``free`` counts all that can be taken, those with reusable content included.

    What is not abstract is for allocators that keep recurrent states too; others know nothing of slots.
    """

    # Whether a sequence gets a second slot where there is one.
    gives_spare = False

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
        """Give an empty ``memory`` the blocks of known content that its tokens begin with, unless it computes all.

        At least one token is left to compute, whose logits the sequence needs.
        """

    @abstractmethod
    def publish(self, memory: SequenceMemory) -> None:
        """Make the full blocks of ``memory`` known to those who come later."""

    @abstractmethod
    def cached(self) -> Iterable[int]:
        """Free blocks whose content can still be adopted."""

    def forget_all(self) -> None:  # noqa: B027
        """Make unknown what is kept for those who come later, as far as no sequence that runs uses it."""

    def make_room(self, count: int, spare: int = 0) -> bool:
        """Whether ``allocate`` can give ``count`` blocks and leave ``spare`` others, now."""
        return self.free >= count + spare

    def admit(self, memory: SequenceMemory) -> None:  # noqa: B027
        """A sequence begins with what ``adopt`` gave it."""

    def take_slot(self, memory: SequenceMemory, end: int) -> int | None:
        """A slot for a copy of the state after ``end`` tokens, or -1; None where nobody wants that state."""
        return None

    def forgone(self, taken: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        """Whose state of ``taken`` (slots by memory, from ``take_slot``) should rather not be taken, now that a
        sequence needs a slot; None where one is free, or a state that can go is worth less."""
        return None

    def reached(self, memory: SequenceMemory, slot: int) -> None:  # noqa: B027
        """The step that ``take_slot`` was asked for has run, and ``slot`` holds the state."""

    def resumed(self, memory: SequenceMemory) -> None:
        """The state in ``memory.source`` has been copied."""
        memory.source = NONE

    def may_steal(self, memory: SequenceMemory) -> bool:
        """Whether ``memory`` can have the slot itself that it would have copied from: nobody else needs it."""
        return False

    def steal(self, memory: SequenceMemory) -> None:  # noqa: B027
        """Give ``memory`` that slot."""

    def donate(self, memory: SequenceMemory) -> None:  # noqa: B027
        """Keep what a sequence computed that gives up its memory; a slot that is kept is no longer the memory's."""

    def leave(self, memory: SequenceMemory) -> None:  # noqa: B027
        """The sequence gives up its memory."""

    def held_blocks(self) -> Iterable[int]:
        """References that the allocator itself has, one entry each."""
        return ()

    def held_slots(self) -> Iterable[int]:
        """Slots that the allocator itself has."""
        return ()


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
