"""One step's memory as a transaction: each sequence gets blocks, slot and row together or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hybridge.runtime.blocks.block_manager import BlockManager
from hybridge.runtime.blocks.growth import Growth
from hybridge.runtime.blocks.prefix_cache import Checkpoint
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory

_NONE_ACCEPTED: Mapping[SequenceMemory, int] = MappingProxyType({})


class Reservation:
    """A reservation of memory of ``manager``, which has one open at a time; ends with ``commit`` or ``release``.

    A memory has its new ``blocks``, ``slot``, ``row`` and row tables at once; its ``length`` grows with the
    commit. Until then a block that copy-on-write replaces stays in use, as the source of the copy.
    """

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._ends: dict[SequenceMemory, int] = {}
        self._growths: dict[SequenceMemory, Growth] = {}
        # Of the states that the step stores for the prefix cache, in order.
        self._checkpoints: dict[SequenceMemory, Sequence[Checkpoint]] = {}
        # Number of draft tokens of those that have some.
        self._drafts: dict[SequenceMemory, int] = {}

    @property
    def moves(self) -> bool:
        """Whether any memory was given something, or the prefix cache takes a state."""
        return bool(self._growths or self._checkpoints)

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the prefix cache takes any state."""
        return bool(self._checkpoints)

    @property
    def block_copies(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the blocks to copy before the step."""
        return tuple(growth.copied[1:] for growth in self._growths.values() if growth.copied)

    @property
    def new_slots(self) -> tuple[int, ...]:
        """Slots to zero before the step: those of new sequences."""
        return tuple(memory.slot for memory, growth in self._growths.items() if growth.new_slot and not memory.length)

    @property
    def resumed_slots(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the cached states with which sequences begin, to be copied before the step."""
        return tuple((memory.source, memory.slot) for memory in self._growths if memory.source != NONE)

    @property
    def taken_slots(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the states that the prefix cache takes after the step."""
        return tuple(
            (memory.slot, slot)
            for memory, checkpoints in self._checkpoints.items()
            for tokens, slot in checkpoints
            if slot != NONE and tokens == self._ends[memory]
        )

    def inner_checkpoints(self, memory: SequenceMemory) -> tuple[tuple[int, int], ...]:
        """New tokens, not all, and the slot that receives the state after these, for the prefix cache."""
        end = self._ends[memory]
        return tuple(
            (tokens - memory.length, slot)
            for tokens, slot in self._checkpoints.get(memory, ())
            if slot != NONE and tokens < end
        )

    def extend(self, memory: SequenceMemory, tokens: int, spare: int = 0, drafts: int = 0) -> bool:
        """Make room for ``tokens`` more tokens (at most once for each memory); the last ``drafts`` are draft tokens.

        False, and nothing is taken, when blocks, slots or rows run out, or fewer than ``spare`` blocks would be left.
        """
        end = memory.length + tokens
        if end > memory.writable and not self._grow(memory, end, spare):
            return False
        if drafts:
            self._drafts[memory] = drafts
        elif end >= memory.stop:
            self._checkpoints[memory] = self._manager.cache.checkpoints(memory, end)
        self._ends[memory] = end
        return True

    def extend_by_one(self, memories: Sequence[SequenceMemory]) -> list[int]:
        """``extend`` each by a token; returns the indices of those that need new memory instead.

        Most steps of decoding sequences need none: this is the fast path for all of them.
        """
        ends, others = self._ends, []
        for index, memory in enumerate(memories):
            end = memory.length + 1
            if end <= memory.writable and end < memory.stop:
                ends[memory] = end
            else:
                others.append(index)
        return others

    def extend_again(self) -> Sequence[SequenceMemory] | None:
        """After a commit, ``extend`` the same memories by a token each; returns those that got a block for it.

        None, and nothing is taken, if one of them needs more than that, or too few blocks are free.
        """
        ends, needing = self._ends, list[SequenceMemory]()
        for memory in ends:
            ends[memory] = end = memory.length + 1
            if end >= memory.stop:
                return None
            if end > memory.writable:
                needing.append(memory)
        if needing:
            manager, count = self._manager, len(needing)
            if not self._need_one_block(needing) or manager.pool.available < count or not manager.cache.evict(count):
                return None
            for memory in needing:
                self._growths[memory] = manager.grow(memory, ends[memory])
        return needing

    def keep_length(self, memory: SequenceMemory) -> None:
        """Let the commit add no token to ``memory``: the step feeds it one that its sequence never gets."""
        self._ends[memory] = memory.length
        self._drop_checkpoints(memory)

    def drop(self, memory: SequenceMemory) -> None:
        """Undo ``extend`` of this memory."""
        del self._ends[memory]
        self._drafts.pop(memory, None)
        self._drop_checkpoints(memory)
        growth = self._growths.pop(memory, None)
        if growth is not None:
            self._manager.shrink(memory, growth)

    def commit(self, accepted: Mapping[SequenceMemory, int] = _NONE_ACCEPTED) -> None:
        """The step has run: its tokens are in the cache, of draft tokens the first ``accepted``, none by default."""
        manager = self._manager
        manager.advance(self._ends)
        if not (self._drafts or self._growths or self._checkpoints):
            return
        for memory, count in self._drafts.items():
            manager.accept(memory, count, accepted.get(memory, 0))
        for memory, growth in self._growths.items():
            manager.settle(memory, growth)
        for memory, checkpoints in self._checkpoints.items():
            for checkpoint in checkpoints:
                manager.insert_checkpoint(memory, checkpoint)
        self._growths, self._checkpoints, self._drafts = {}, {}, {}

    def release(self) -> None:
        """The step will not run, or failed: every memory is as it was."""
        for memory in list(self._checkpoints):
            self._drop_checkpoints(memory)
        for memory, growth in reversed(self._growths.items()):
            self._manager.shrink(memory, growth)
        self._ends, self._growths, self._checkpoints, self._drafts = {}, {}, {}, {}

    def check_integrity(self, memories: Sequence[SequenceMemory]) -> None:
        """PoolError unless the pools hold exactly the memory of ``memories`` (all of them) and of this reservation."""
        self._manager.check_integrity(memories, [source for source, _ in self.block_copies], self._checkpoint_slots())

    def _grow(self, memory: SequenceMemory, end: int, spare: int) -> bool:
        manager = self._manager
        checkpoints = not manager.packs_states and bool(self._checkpoint_slots())
        if not manager.make_room(memory, end, spare, checkpoints):
            return False
        skipped = manager.cache.checkpoint_to_skip(self._slot_of_each()) if manager.needs_slot(memory) else None
        if skipped is not None:
            without = [checkpoint._replace(slot=NONE) for checkpoint in self._checkpoints[skipped]]
            self._drop_checkpoints(skipped)
            self._checkpoints[skipped] = without
        self._growths[memory] = manager.grow(memory, end)
        return True

    def _need_one_block(self, memories: Sequence[SequenceMemory]) -> bool:
        """Whether a block is all that each memory needs for its next token."""
        size = self._manager.block_size
        # One block is not enough where the last one is shared, or blocks leave the sliding window when one is added.
        return self._manager.needs.window is None and all(m.writable == len(m.blocks) * size for m in memories)

    def _checkpoint_slots(self) -> list[int]:
        return [slot for each in self._checkpoints.values() for _, slot in each if slot != NONE]

    def _slot_of_each(self) -> dict[SequenceMemory, int]:
        return {memory: max(slot for _, slot in each) for memory, each in self._checkpoints.items()}

    def _drop_checkpoints(self, memory: SequenceMemory) -> None:
        self._manager.states.release([slot for _, slot in self._checkpoints.pop(memory, ()) if slot != NONE])
