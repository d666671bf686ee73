"""Recurrent states by slot, changed at once: for what happens between steps, not as part of one."""

from __future__ import annotations

from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.blocks.slot_pool import SlotPool
from hybridge.runtime.engines.paged import PagedEngine


class StatePool:
    """One slot holds the conv and recurrent states of all layers. ``slots`` keeps the books, ``engine`` the states."""

    def __init__(self, slots: SlotPool, engine: PagedEngine) -> None:
        self._slots, self._engine = slots, engine

    @property
    def free(self) -> int:
        """Slots that ``allocate`` can give."""
        return self._slots.free

    def allocate(self) -> int:
        """A slot with the state before the first token, all zero; -1 when none is free."""
        if not self._slots.free:
            return NONE
        slot = self._slots.allocate()
        self._engine.zero_slots([slot])
        return slot

    def copy_from(self, source: int, target: int) -> None:
        """Let ``target`` hold what ``source`` holds."""
        if source != target:
            self._engine.copy_slots([source], [target])

    def fork_from(self, source: int) -> int:
        """A slot of its own with the state of ``source``; -1 when none is free."""
        if not self._slots.free:
            return NONE
        slot = self._slots.allocate()
        self._engine.copy_slots([source], [slot])
        return slot

    def release(self, slot: int) -> None:
        """Give the slot back; PoolError when it is free."""
        self._slots.release([slot])
