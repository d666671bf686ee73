"""All that sequences hold on the device: KV blocks, slots of recurrent states and rows of the block tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hybridge.runtime.blocks.allocator import BlockAllocator, NaiveAllocator
from hybridge.runtime.blocks.block_pool import BlockPool
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.prefix_caching import PrefixCachingAllocator
from hybridge.runtime.blocks.reservation import Reservation
from hybridge.runtime.blocks.row_tables import RowTables
from hybridge.runtime.blocks.sequence_memory import NEVER, NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import SlotPool
from hybridge.runtime.engines.paged import PoolSizes

if TYPE_CHECKING:
    from hybridge.runtime.prefix_cache.radix_allocator import RadixAllocator


class BlockManager:
    """Gives memory to sequences step by step (``begin``) and takes it back; knows nothing of its content.

    max_rows: sequences that can hold memory at a time. max_seq_len: tokens of the longest. prefix_caching: whether
    sequences share the full blocks they begin with; without effect where the model has states or a window. radix: a
    cache over pools of ``sizes`` that does more, for every model; with it, blocks behind a window stay. candidates:
    slots that a sequence has beside its own, for states after tokens that may turn out wrong; None: it needs none,
    as the engine holds its state until it is known which are right.
    """

    def __init__(
        self,
        sizes: PoolSizes,
        needs: CacheNeeds,
        max_rows: int,
        max_seq_len: int,
        prefix_caching: bool = True,
        radix: RadixAllocator | None = None,
        candidates: int | None = 0,
    ) -> None:
        self.needs = needs if radix is None else replace(needs, window=None)
        self.block_size = sizes.block_size
        self._candidates = candidates if needs.state and candidates else 0
        self.keeps_states = needs.state and candidates is not None
        self.pool: BlockPool = BlockPool(sizes.num_blocks) if radix is None else radix.pool
        self.slots: SlotPool = SlotPool(sizes.num_slots) if radix is None else radix.slots
        # Of the prefix cache's states: those of the rows, unless they are packed.
        self.states: SlotPool = self.slots if radix is None else radix.states
        self.rows = RowTables(max_rows, max(1, self.blocks_for(max_seq_len)))
        shared = prefix_caching and needs.kv and not needs.state and needs.window is None
        kind = PrefixCachingAllocator if shared else NaiveAllocator
        self.allocator: BlockAllocator = radix or kind(self.pool, sizes.block_size)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_size) if self.needs.kv else 0

    def most_blocks(self, tokens: int, chunk: int) -> int:
        """The most blocks that a sequence of ``tokens`` tokens, fed in chunks of ``chunk``, holds at a time."""
        most = self.blocks_for(tokens)
        if self.needs.window is None:
            return most
        return min(most, self.blocks_for(self.needs.window + chunk) + 2)

    def take_candidates(self) -> list[int]:
        """Slots for the states after candidate tokens, as many as there are.

        Every row that is free keeps a slot for the sequence that comes.
        """
        count = min(self._candidates, self.slots.free - self.rows.free)
        return [self.slots.allocate() for _ in range(count)]

    @property
    def packs_states(self) -> bool:
        """Whether the states of the prefix cache lie apart, in 8 bits."""
        return self.states is not self.slots

    def begin(self) -> Reservation:
        """A new transaction; there may be one at a time."""
        return Reservation(self)

    def fork(self, parent: SequenceMemory, tokens: list[int]) -> SequenceMemory | None:
        """Memory for a second sequence of the same tokens so far: blocks shared, a row and a slot of its own.

        ``tokens`` are the child's. The caller copies the parent's slot into the child's before either advances.
        None, and nothing is taken, when rows or slots run out.
        """
        if not self.rows.free or (self.needs.state and not self.slots.free):
            return None
        child = SequenceMemory(tokens, parent.namespace)
        child.blocks = parent.blocks.copy()
        self.pool.retain(parent.held)
        child.length, child.passed = parent.length, parent.passed
        child.published, child.content = parent.published, parent.content
        child.row = self.rows.assign(child.blocks)
        if self.needs.state:
            child.slot = self.slots.allocate()
            child.candidates = self.take_candidates()
        child.writable = parent.writable
        child.exact = parent.exact and not self.needs.state
        if self.needs.kv:
            child.writable = parent.writable = parent.length
        return child

    def settle(self, memory: SequenceMemory) -> None:
        """Publish what is complete and give back what fell out of the sliding window."""
        self.allocator.publish(memory)
        if self.needs.window is None or not self.needs.kv:
            return
        passed = self.needs.first_visible(memory.length) // self.block_size
        if passed > memory.passed:
            self.allocator.release(memory.blocks[memory.passed : passed])
            memory.blocks[memory.passed : passed] = [NONE] * (passed - memory.passed)
            self.rows.array[memory.row, :passed] = NONE
            memory.passed = passed

    def park(self, memory: SequenceMemory) -> None:
        """Take back everything, but remember what there was: the next reservation makes room for it again."""
        self.allocator.publish(memory)
        self.allocator.leave(memory)
        self.allocator.release(memory.held)
        del memory.blocks[memory.passed :]
        self.slots.release(memory.slots)
        self.states.release(memory.spares)
        memory.candidates = []
        if memory.row != NONE:
            self.rows.release(memory.row)
        memory.slot = memory.spare = memory.row = NONE
        memory.writable = 0
        memory.exact = False

    def release(self, memory: SequenceMemory) -> None:
        """Take back everything; the memory knows no token any more. Releasing an empty memory is allowed."""
        self.park(memory)
        memory.blocks = []
        memory.length = memory.passed = memory.published = 0
        memory.content = None
        memory.stop = NEVER

    def retire(self, memory: SequenceMemory) -> None:
        """``release``, but what was computed may be kept for others."""
        if memory.exact and memory.row != NONE:
            self.allocator.donate(memory)
        self.release(memory)

    def check_integrity(self, memories: Iterable[SequenceMemory], reservation: Reservation | None = None) -> None:
        """PoolError unless the pools hold exactly what ``memories``, all there are, and an open reservation have."""
        memories = list(memories)
        held = [block for memory in memories for block in memory.held]
        held += [] if reservation is None else [source for source, _ in reservation.block_copies]
        held += self.allocator.held_blocks()
        slots = [slot for memory in memories for slot in memory.slots]
        states = [slot for memory in memories for slot in memory.spares]
        states += [] if reservation is None else reservation.own_slots
        states += self.allocator.held_slots()
        self.pool.check_integrity(held)
        if self.packs_states:
            self.slots.check_integrity(slots)
            self.states.check_integrity(states)
        else:
            self.slots.check_integrity(slots + states)
