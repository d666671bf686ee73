"""One step's memory as a transaction: each sequence gets blocks, slot and row together or nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory

if TYPE_CHECKING:
    from hybridge.runtime.blocks.block_manager import BlockManager


_NOBODY: Mapping[SequenceMemory, int] = MappingProxyType({})


@dataclass(frozen=True)
class _Growth:
    """What ``extend`` took for one memory, and what it was before."""

    added: int
    copied: tuple[int, int, int] | None  # index in the table, block before, block now
    took_slot: bool
    took_row: bool
    took_spare: bool
    writable: int


class Reservation:
    """Made by ``BlockManager.begin``; ends with ``commit`` or ``release``.

    A memory shows what it was given at once, in ``blocks``, ``slot``, ``row`` and the row tables; its ``length``
    grows with the commit. Until then a block that copy-on-write replaces stays in use, as the source of the copy.
    """

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._ends: dict[SequenceMemory, int] = {}
        self._grown: dict[SequenceMemory, _Growth] = {}
        # Slots among the prefix cache's states for copies of those after the step; -1 where there is none, or the model
        # has no states.
        self._taken: dict[SequenceMemory, int] = {}
        # How many tokens of those that have some may turn out wrong.
        self._candidates: dict[SequenceMemory, int] = {}

    @property
    def block_copies(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the blocks to copy before the step."""
        return tuple(growth.copied[1:] for growth in self._grown.values() if growth.copied)

    @property
    def new_slots(self) -> tuple[int, ...]:
        """Slots to zero before the step: those of sequences that begin."""
        return tuple(memory.slot for memory, growth in self._grown.items() if growth.took_slot and not memory.length)

    @property
    def resumed_slots(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the states that sequences begin with, the prefix cache's, to be copied before the
        step."""
        return tuple((memory.source, memory.slot) for memory in self._grown if memory.source != NONE)

    @property
    def taken_slots(self) -> tuple[tuple[int, int], ...]:
        """(source, target) of the states that the prefix cache takes after the step, target among its states."""
        return tuple((memory.slot, slot) for memory, slot in self._taken.items() if slot != NONE)

    @property
    def own_slots(self) -> list[int]:
        """Slots among the prefix cache's states that belong to no memory yet."""
        return [slot for memory, slot in self._taken.items() if slot not in (NONE, memory.spare)]

    def extend(self, memory: SequenceMemory, tokens: int, spare: int = 0, candidates: int = 0) -> bool:
        """Make room for ``tokens`` more tokens (at most once for each memory), the last ``candidates`` on trial.

        False, and nothing is taken, when blocks, slots or rows run out, or fewer than ``spare`` blocks would be left.
        """
        end = memory.length + tokens
        if end > memory.writable and not self._grow(memory, end, spare):
            return False
        if candidates:
            self._candidates[memory] = candidates
        elif tokens > 1 or end >= memory.stop:
            slot = self._manager.allocator.take_slot(memory, end)
            if slot is not None:
                self._taken[memory] = slot
        self._ends[memory] = end
        return True

    def extend_by_one(self, memories: Sequence[SequenceMemory]) -> list[int]:
        """``extend`` every one by a token, but for those to which something has to be given, whose places are returned.

        In most steps of most sequences that decode nothing is: this is the short way for all of them.
        """
        ends, others = self._ends, []
        for place, memory in enumerate(memories):
            end = memory.length + 1
            if end <= memory.writable and end < memory.stop:
                ends[memory] = end
            else:
                others.append(place)
        return others

    def drop(self, memory: SequenceMemory) -> None:
        """Undo ``extend`` of this memory."""
        del self._ends[memory]
        self._candidates.pop(memory, None)
        self._untake(memory)
        growth = self._grown.pop(memory, None)
        if growth is not None:
            self._undo(memory, growth)

    def commit(self, accepted: Mapping[SequenceMemory, int] = _NOBODY) -> None:
        """The step has run: its tokens are in the cache, of those on trial the first ``accepted``, none by default."""
        for memory, end in self._ends.items():
            memory.length = end
        for memory, count in self._candidates.items():
            self._keep(memory, count, accepted.get(memory, 0))
        allocator = self._manager.allocator
        for memory, growth in self._grown.items():
            memory.exact = True
            if growth.copied:
                allocator.release([growth.copied[1]])
            if memory.source != NONE:
                allocator.resumed(memory)
            self._manager.settle(memory)
        for memory, slot in self._taken.items():
            allocator.reached(memory, slot)
            self._give_spare(memory, self._manager.rows.free)
        self._clear()

    def release(self) -> None:
        """The step will not run, or failed: every memory is as it was."""
        for memory in list(self._taken):
            self._untake(memory)
        for memory, growth in reversed(self._grown.items()):
            self._undo(memory, growth)
        self._clear()

    def _keep(self, memory: SequenceMemory, candidates: int, accepted: int) -> None:
        """Keep the first ``accepted`` of the candidates: their KV, and the state after the last of them."""
        manager = self._manager
        memory.length -= candidates - accepted
        if accepted and manager.keeps_states:
            slots = memory.candidates
            memory.slot, slots[accepted - 1] = slots[accepted - 1], memory.slot
        kept = manager.blocks_for(memory.length)
        given_back = memory.blocks[kept:]
        if given_back:
            del memory.blocks[kept:]
            manager.rows.array[memory.row, kept:] = NONE
            manager.allocator.release(given_back)
            memory.writable = min(memory.writable, kept * manager.block_size)

    def _grow(self, memory: SequenceMemory, end: int, spare: int) -> bool:
        manager, blocks = self._manager, memory.blocks
        pool, tables = manager.pool, manager.rows
        first = memory.length // manager.block_size
        copies = manager.needs.kv and first < len(blocks) and pool.references(blocks[first]) > 1
        missing = max(0, manager.blocks_for(end) - len(blocks))
        took_slot = manager.needs.state and memory.slot == NONE
        took_row = memory.row == NONE
        if took_row and not tables.free:
            return False
        if took_slot and not self._finds_slot(memory):
            return False
        if not manager.allocator.make_room(missing + copies, spare):
            return False
        new = manager.allocator.allocate(missing + copies)
        copied = None
        if copies:
            copied = (first, blocks[first], new.pop())
            blocks[first] = copied[2]
        blocks += new
        if took_slot:
            self._give_slot(memory)
        took_spare = took_slot and self._give_spare(memory, tables.free - took_row)
        self._grown[memory] = _Growth(len(new), copied, took_slot, took_row, took_spare, memory.writable)
        if took_row:
            memory.row = tables.assign(blocks)
        else:
            start = first if copies else len(blocks) - len(new)
            tables.array[memory.row, start : len(blocks)] = blocks[start:]
        if took_slot:
            memory.candidates = manager.take_candidates()
        memory.writable = len(blocks) * manager.block_size if manager.needs.kv else sys.maxsize
        return True

    def _finds_slot(self, memory: SequenceMemory) -> bool:
        """Whether ``_give_slot`` finds one."""
        manager = self._manager
        taken = not manager.packs_states and bool(self.own_slots)
        return manager.slots.free > 0 or taken or manager.allocator.may_steal(memory)

    def _give_slot(self, memory: SequenceMemory) -> None:
        """A slot for a sequence, if need be one that was to take a state after this very step, or that of the state
        that it begins with."""
        manager = self._manager
        forgone = manager.allocator.forgone(self._taken)
        if forgone is not None:
            self._untake(forgone)
            self._taken[forgone] = NONE
        if manager.slots.free:
            memory.slot = manager.slots.allocate()
        else:
            manager.allocator.steal(memory)

    def _give_spare(self, memory: SequenceMemory, rows: int) -> bool:
        """Whether the sequence gets a second slot: every one of ``rows`` that is free keeps one for who comes."""
        manager = self._manager
        if not manager.allocator.gives_spare or memory.spare != NONE:
            return False
        if manager.states.free <= (0 if manager.packs_states else rows):
            return False
        memory.spare = manager.states.allocate()
        return True

    def _undo(self, memory: SequenceMemory, growth: _Growth) -> None:
        manager, blocks = self._manager, memory.blocks
        kept = len(blocks) - growth.added
        given_back = blocks[kept:]
        del blocks[kept:]
        row = manager.rows.array[memory.row]
        row[kept:] = NONE
        if growth.copied:
            index, before, now = growth.copied
            blocks[index] = row[index] = before
            given_back.append(now)
        manager.allocator.release(given_back)
        if growth.took_slot:
            manager.slots.release([memory.slot, *memory.candidates])
            memory.slot, memory.candidates = NONE, []
        if growth.took_spare:
            manager.states.release([memory.spare])
            memory.spare = NONE
        if growth.took_row:
            manager.rows.release(memory.row)
            memory.row = NONE
        memory.writable = growth.writable

    def _untake(self, memory: SequenceMemory) -> None:
        slot = self._taken.pop(memory, NONE)
        if slot not in (NONE, memory.spare):
            self._manager.states.release([slot])

    def _clear(self) -> None:
        self._ends, self._grown, self._taken, self._candidates = {}, {}, {}, {}
