"""Slots for new states of the tree, and evictions to free them."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import EvictingSlotPool, SlotPool
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.eviction_policy import last_state
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.uses import StateUses


class StateSlots:
    """The slots of the tree's states, and those of the rows.

    Exact states share one pool with the rows: the tree takes over the slot of a row that ends, and evicts states for
    rows. States in 8 bits (``packs``) have their own pool, whose slots rows cannot use.
    """

    def __init__(self, sizes: PoolSizes, settings: PrefixCacheSettings) -> None:
        self.packs = settings.states != EXACT
        self.tree = EvictingSlotPool(sizes.num_packed if self.packs else sizes.num_slots)
        self.rows: SlotPool = SlotPool(sizes.num_slots) if self.packs else self.tree


class CheckpointSlots:
    """``slots`` of the states of ``tree``.

    One slot for packed states stays free for the next sequence that ends; when its state, which may replace others,
    is in the tree, ``free_reserved_slot`` evicts the least valuable one. Exact states stay in the slots of their rows.
    """

    def __init__(self, slots: StateSlots, tree: RadixTree, uses: StateUses, metrics: CacheMetrics) -> None:
        self._packs, self._slots = slots.packs, slots.tree
        self._reserved = int(slots.packs)
        self.frees_reserved_slot = True
        self._tree, self._uses, self._metrics = tree, uses, metrics

    def slot_for(self, memory: SequenceMemory, end: int, kind: CheckpointKind, before: int = 0) -> int:
        """A slot for the state after ``end`` tokens: a free one, or that of a state of less value; -1 when there is
        none.

        before: tokens after which the same step stores another state, if it does.
        """
        prefix, slots = RadixPrefix.of(memory), self._slots
        key = prefix.key(memory.tokens, end)
        uses = self._uses.expected(memory.namespace, key, kind)
        value = self._tree.new_state_value(max(before, _resumable(prefix.node)), end, uses)
        prefix.value = max(prefix.value, value) if before else value
        if slots.unowned <= (0 if kind is CheckpointKind.END else self._reserved):
            least = self._tree.least_state()
            if least is None or least > value:
                self._metrics.states_refused += 1
                self._uses.refused(memory.namespace, key)
                return NONE
            self._tree.evict_state()
        return slots.allocate()

    def checkpoint_to_skip(self, slots: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        """As ``PrefixCache.checkpoint_to_skip``."""
        values = {memory: RadixPrefix.of(memory).value for memory, slot in slots.items() if slot != NONE}
        if self._packs or self._slots.unowned or not values:
            return None
        memory, least = min(values, key=values.__getitem__), self._tree.least_state()
        return memory if least is None or values[memory] < least else None

    def free_reserved_slot(self) -> None:
        """Evict a state unless the slot for the next sequence that ends is free."""
        if self.frees_reserved_slot and self._slots.unowned < self._reserved:
            self._tree.evict_state()


def _resumable(node: Node | None) -> int:
    """Tokens up to the nearest state at ``node`` or above it."""
    if node is None:
        return 0
    return node.end if node.state is not None else last_state(node)
