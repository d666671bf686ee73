"""Slots of recurrent states, each with one owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from hybridge.runtime.blocks.errors import PoolError


class SlotPool:
    """Slots 0 to num_slots - 1. The lowest free one is taken next, so that those in use are adjacent: an engine reads
    adjacent states in place and has to gather others."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.free_all()

    def free_all(self, but: Iterable[int] = ()) -> None:
        """Give all slots back, except those of ``but``, which are in use now."""
        self._used = set(but)
        self._free = sorted({*range(self.num_slots)} - self._used)  # a heap

    @property
    def free(self) -> int:
        """Slots without an owner."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots with an owner."""
        return len(self._used)

    def in_use(self, slot: int) -> bool:
        """Whether the slot has an owner."""
        return slot in self._used

    def allocate(self) -> int:
        """Take a free slot, whose content is undefined; PoolError if there is none."""
        if not self._free:
            raise PoolError(f"expected a free slot, found all {self.num_slots} in use")
        slot = heappop(self._free)
        self._used.add(slot)
        return slot

    def release(self, slots: Iterable[int]) -> None:
        """Give slots back; PoolError for one that is free."""
        for slot in slots:
            if slot not in self._used:
                raise PoolError(f"expected a slot in use, found the free slot {slot}: it was released twice")
            self._used.remove(slot)
            heappush(self._free, slot)

    def check_integrity(self, slots: Iterable[int]) -> None:
        """PoolError unless ``slots``, one entry for each owner, names exactly the used slots, each once."""
        owners = list(slots)
        if len(owners) != len(set(owners)):
            raise PoolError(f"a slot has two owners: {sorted(owners)}")
        if set(owners) != self._used or len(self._used) + len(self._free) != self.num_slots:
            raise PoolError(f"{sorted(owners)} have owners, but {sorted(self._used)} are in use")


class EvictingSlotPool(SlotPool):
    """Slots, some of which hold states that can be evicted: ``free`` counts these too, and ``allocate`` evicts one.

    ``evict`` releases one of the ``evictable()`` slots.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._evict: Callable[[], object] = lambda: None
        self._evictable: Callable[[], int] = lambda: 0

    def attach(self, evict: Callable[[], object], evictable: Callable[[], int]) -> None:
        """Set what owns states that can be evicted."""
        self._evict, self._evictable = evict, evictable

    @property
    def free(self) -> int:
        return len(self._free) + self._evictable()

    @property
    def unowned(self) -> int:
        """Slots without an owner."""
        return len(self._free)

    def allocate(self) -> int:
        if not self._free:
            self._evict()
        return super().allocate()
