"""Device memory of sequences: KV blocks, slots of recurrent states and rows of the block tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from hybridge.runtime.blocks.growth import Growth
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.prefix_cache import Checkpoint, PrefixCache
from hybridge.runtime.blocks.row_tables import RowTables
from hybridge.runtime.blocks.sequence_memory import NEVER, NONE, SequenceMemory


class BlockManager:
    """Allocates and releases the memory of sequences; the only writer of ``SequenceMemory``. Ignores contents.

    max_rows: maximum number of sequences with memory. max_seq_len: tokens of the longest. cache: owns the pools, and
    stores computed prefixes for later sequences. takes_checkpoints: steps can store states for it also after
    other tokens than their last.
    """

    def __init__(
        self,
        block_size: int,
        needs: CacheNeeds,
        max_rows: int,
        max_seq_len: int,
        cache: PrefixCache,
        takes_checkpoints: bool = False,
    ) -> None:
        self.needs, self.block_size, self.cache = needs, block_size, cache
        self.pool, self.slots, self.states = cache.pool, cache.slots, cache.states
        self.takes_checkpoints = takes_checkpoints
        self.rows = RowTables(max_rows, max(1, self.blocks_for(max_seq_len)))

    @property
    def packs_states(self) -> bool:
        """Whether the states of the prefix cache have their own slots, in 8 bits."""
        return self.states is not self.slots

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_size) if self.needs.kv else 0

    def most_blocks(self, tokens: int, chunk: int) -> int:
        """Maximum number of blocks of a sequence of ``tokens`` tokens, fed in chunks of ``chunk``."""
        most = self.blocks_for(tokens)
        if self.needs.window is None:
            return most
        return min(most, self.blocks_for(self.needs.window + chunk) + 2)

    # A sequence begins, perhaps with a cached prefix or as a fork, and finally releases everything.

    def match(self, memory: SequenceMemory, reuse: bool = True) -> None:
        """Start an empty ``memory`` with the cached prefix of its tokens, or empty (not reuse)."""
        match = self.cache.match(memory, reuse)
        self.pool.retain(match.blocks)
        memory.blocks = list(match.blocks)
        memory.length = memory.writable = match.length
        memory.source, memory.stop, memory.prefix = match.state, match.stop, match.prefix

    def begin(self, memory: SequenceMemory) -> None:
        """The sequence runs with the prefix that ``match`` found."""
        self.cache.begin(memory)

    def fork(self, parent: SequenceMemory, tokens: list[int]) -> SequenceMemory | None:
        """Memory for a second sequence of the same tokens so far: shared blocks, and its own row and slot.

        ``tokens`` are the child's. The caller copies the parent's slot into the child's before either advances.
        None, without any change, when rows or slots run out.
        """
        if not self.rows.free or (self.needs.state and not self.slots.free):
            return None
        child = SequenceMemory(tokens, parent.namespace)
        child.blocks = parent.blocks.copy()
        self.pool.retain(parent.owned_blocks)
        child.length, child.passed = parent.length, parent.passed
        child.prefix = None if parent.prefix is None else parent.prefix.forked()
        child.row = self.rows.assign(child.blocks)
        if self.needs.state:
            child.slot = self.slots.allocate()
        child.writable = parent.writable
        child.exact = parent.exact and not self.needs.state
        if self.needs.kv:
            child.writable = parent.writable = parent.length
        return child

    def set_exact(self, memory: SequenceMemory, exact: bool) -> None:
        """Whether what ``memory`` holds is that of its tokens: a forked state has been copied, or a step failed."""
        memory.exact = exact

    def park(self, memory: SequenceMemory) -> None:
        """Release everything but remember its size: the next reservation makes room for it again."""
        if memory.exact and memory.row != NONE:
            self.cache.insert(memory)
        self.cache.release(memory)
        self.pool.release(memory.owned_blocks)
        del memory.blocks[memory.passed :]
        self.slots.release(memory.slots)
        if memory.row != NONE:
            self.rows.release(memory.row)
        memory.slot = memory.row = memory.source = NONE
        memory.writable = 0
        memory.exact = False

    def release(self, memory: SequenceMemory) -> None:
        """Release everything, so that the memory has no tokens. Releasing an empty memory is allowed."""
        self.park(memory)
        memory.blocks = []
        memory.length = memory.passed = 0
        memory.stop = NEVER

    def retire(self, memory: SequenceMemory) -> None:
        """``release``, but the prefix cache may keep the computed prefix."""
        if memory.exact and memory.row != NONE and memory.length and self.cache.insert(memory, ended=True):
            memory.slot = NONE
        self.release(memory)

    def start_over(self) -> None:
        """Take all memory from all sequences and the prefix cache, whatever they have."""
        self.rows.free_all()
        self.cache.start_over()

    # The steps of a reservation.

    def make_room(self, memory: SequenceMemory, end: int, spare: int, checkpoints: bool) -> bool:
        """Whether ``grow`` can make room for ``end`` tokens and leave ``spare`` blocks; evicts as needed.

        checkpoints: whether the step has slots for checkpoints, one of which can be skipped.
        """
        if memory.row == NONE and not self.rows.free:
            return False
        if self.needs_slot(memory) and not (self.slots.free or checkpoints or self.cache.can_take_state(memory)):
            return False
        blocks = self._missing(memory, end) + self._copies(memory)
        return self.pool.available >= blocks + spare and self.cache.evict(blocks)

    def needs_slot(self, memory: SequenceMemory) -> bool:
        """Whether ``memory`` has no slot but needs one."""
        return self.needs.state and memory.slot == NONE

    def grow(self, memory: SequenceMemory, end: int) -> Growth:
        """Blocks for ``end`` tokens, and a slot and a row where it has none; ``make_room`` has made room for them."""
        blocks, first = memory.blocks, memory.length // self.block_size
        new_slot, new_row, copies = self.needs_slot(memory), memory.row == NONE, self._copies(memory)
        new = self.pool.allocate(self._missing(memory, end) + copies)
        copied = None
        if copies:
            copied = (first, blocks[first], new.pop())
            blocks[first] = copied[2]
        blocks += new
        if new_slot and self.slots.free:
            memory.slot = self.slots.allocate()
        elif new_slot:
            memory.slot, memory.source = self.cache.take_state(memory), NONE
            assert memory.slot != NONE
        growth = Growth(len(new), copied, new_slot, new_row, memory.writable)
        if new_row:
            memory.row = self.rows.assign(blocks)
        else:
            start = first if copies else len(blocks) - len(new)
            self.rows.array[memory.row, start : len(blocks)] = blocks[start:]
        memory.writable = len(blocks) * self.block_size if self.needs.kv else sys.maxsize
        return growth

    def shrink(self, memory: SequenceMemory, growth: Growth) -> None:
        """Undo ``grow``."""
        blocks = memory.blocks
        count = len(blocks) - growth.added
        surplus = blocks[count:]
        del blocks[count:]
        row = self.rows.array[memory.row]
        row[count:] = NONE
        if growth.copied:
            index, before, now = growth.copied
            blocks[index] = row[index] = before
            surplus.append(now)
        self.pool.release(surplus)
        if growth.new_slot:
            self.slots.release(memory.slots)
            memory.slot = NONE
        if growth.new_row:
            self.rows.release(memory.row)
            memory.row = NONE
        memory.writable = growth.writable

    def advance(self, ends: Mapping[SequenceMemory, int]) -> None:
        """The step has run: the tokens of each sequence up to its end are computed."""
        for memory, end in ends.items():
            memory.length = end

    def accept(self, memory: SequenceMemory, drafts: int, accepted: int) -> None:
        """Keep the first ``accepted`` of the last ``drafts`` tokens; the engine has rolled back their states."""
        memory.length -= drafts - accepted
        count = self.blocks_for(memory.length)
        surplus = memory.blocks[count:]
        if surplus:
            del memory.blocks[count:]
            self.rows.array[memory.row, count:] = NONE
            self.pool.release(surplus)
            memory.writable = min(memory.writable, count * self.block_size)

    def settle(self, memory: SequenceMemory, growth: Growth) -> None:
        """The step that ``growth`` was for has run: insert complete blocks, release those behind the window."""
        memory.exact = True
        if growth.copied:
            self.pool.release([growth.copied[1]])
        if memory.source != NONE:
            memory.source = NONE
            self.cache.state_copied(memory)
        self.cache.insert(memory)
        self._protect_cached_tokens(memory)
        passed = self.needs.first_visible(memory.length) // self.block_size if self.needs.kv else 0
        if passed > memory.passed:
            self.pool.release(memory.blocks[memory.passed : passed])
            memory.blocks[memory.passed : passed] = [NONE] * (passed - memory.passed)
            self.rows.array[memory.row, :passed] = NONE
            memory.passed = passed

    def insert_checkpoint(self, memory: SequenceMemory, checkpoint: Checkpoint) -> None:
        """The step has run and the slot of ``checkpoint`` holds a copy of the state after its tokens."""
        memory.stop = self.cache.insert_checkpoint(memory, checkpoint)
        self._protect_cached_tokens(memory)

    def check_integrity(
        self, memories: Iterable[SequenceMemory], blocks: Iterable[int] = (), states: Iterable[int] = ()
    ) -> None:
        """PoolError unless the pools hold exactly what ``memories``, all there are, and the prefix cache have.

        blocks, states: what an open reservation has in addition.
        """
        memories = list(memories)
        owned = [block for memory in memories for block in memory.owned_blocks]
        slots = [slot for memory in memories for slot in memory.slots]
        cached = [*states, *self.cache.state_slots()]
        self.pool.check_integrity([*owned, *blocks, *self.cache.blocks()])
        if self.packs_states:
            self.slots.check_integrity(slots)
            self.states.check_integrity(cached)
        else:
            self.slots.check_integrity(slots + cached)

    def _protect_cached_tokens(self, memory: SequenceMemory) -> None:
        """If the cache now has the last block, which is never written to again, continue in a copy."""
        if self.needs.kv and memory.length % self.block_size and self._copies(memory):
            memory.writable = min(memory.writable, memory.length)

    def _missing(self, memory: SequenceMemory, end: int) -> int:
        return max(0, self.blocks_for(end) - len(memory.blocks))

    def _copies(self, memory: SequenceMemory) -> bool:
        """Whether the next token of ``memory`` goes into a block that others use too."""
        first = memory.length // self.block_size
        return self.needs.kv and first < len(memory.blocks) and self.pool.references(memory.blocks[first]) > 1
