"""Which slot a new state of the tree gets, and what is evicted for it."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import EvictingSlotPool, SlotPool
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.uses import StateUses
from hybridge.runtime.prefix_cache.worth import last_state


class StateSlots:
    """The slots of the tree's states, and those of the rows.

    Exact states share one pool with the rows: a row that ends leaves its slot to the tree, and states of the tree are
    evicted for rows. States in 8 bits (``packs``) have a pool of their own, whose slots rows cannot use.
    """

    def __init__(self, sizes: PoolSizes, settings: PrefixCacheSettings) -> None:
        self.packs = settings.states != EXACT
        self.tree = EvictingSlotPool(sizes.num_packed if self.packs else sizes.num_slots)
        self.rows: SlotPool = SlotPool(sizes.num_slots) if self.packs else self.tree


class CheckpointSlots:
    """``slots`` of the states of ``tree``.

    Of slots that packed states have for themselves, one is left for the next sequence that ends: only when its state
    is in the tree, which may make others needless, ``tidy`` evicts the least. Exact states come in the slots of rows.
    """

    def __init__(self, slots: StateSlots, tree: RadixTree, uses: StateUses, metrics: CacheMetrics) -> None:
        self._packs, self._slots = slots.packs, slots.tree
        self._left = int(slots.packs)
        self.tidies = True
        self._tree, self._uses, self._metrics = tree, uses, metrics

    def slot_for(self, memory: SequenceMemory, end: int, kind: Kind) -> int:
        """A slot for the state after ``end`` tokens: a free one, or that of a state of less worth; -1 when there is
        none."""
        prefix, slots = RadixPrefix.of(memory), self._slots
        left = 0 if kind is Kind.END else self._left
        if slots.unowned <= left and prefix.chunk is not None:
            self.drop_chunk(prefix.chunk)  # the new one replaces it
            prefix.chunk = None
        key = prefix.key(memory.tokens, end)
        prefix.worth = self._worth(prefix, end, self._uses.expected(memory.namespace, key, kind))
        if slots.unowned <= left:
            least = self._tree.least_state()
            if least is None or least > prefix.worth:
                self._metrics.states_refused += 1
                self._uses.refused(memory.namespace, key, kind)
                return NONE
            self._tree.evict_state()
        return slots.allocate()

    def checkpoint_to_skip(self, slots: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        """As ``PrefixCache.checkpoint_to_skip``."""
        worths = {memory: RadixPrefix.of(memory).worth for memory, slot in slots.items() if slot != NONE}
        if self._packs or self._slots.unowned or not worths:
            return None
        memory, least = min(worths, key=worths.__getitem__), self._tree.least_state()
        return memory if least is None or worths[memory] < least else None

    def tidy(self) -> None:
        """Leave a slot for the next sequence that ends."""
        if self.tidies and self._slots.unowned < self._left:
            self._tree.evict_state()

    def drop_chunk(self, node: Node) -> None:
        """Drop a state that only served while its prompt was being computed, unless it is another one by now."""
        may_go = node.attached and node.state is not None and not node.state_locks and len(node.children) < 2
        if may_go and node.kind in (Kind.CHUNK, Kind.PASSED):
            self._tree.drop_state(node)

    def _worth(self, prefix: RadixPrefix, end: int, uses: float) -> float:
        """Of a new state after ``end`` tokens that may be used so often."""
        node = prefix.node
        start = 0 if node is None else node.end if node.state is not None else last_state(node)
        return self._tree.worth_of_new_state(start, end, uses)
