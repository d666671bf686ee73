"""Room for the states of the tree: which slot a new one gets, and whose it was."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import EvictingSlotPool, SlotPool
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.known_prefix import KnownPrefix
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import EXTRA_BUFFER, PrefixCacheSettings
from hybridge.runtime.prefix_cache.uses import StateUses
from hybridge.runtime.prefix_cache.worth import last_state


class StateSlots:
    """The slots of the tree's states, and those of the rows.

    Exact states share one pool with the rows: a row that ends leaves its slot to the tree, and what the tree has gives
    way to rows. States in 8 bits (``packs``) lie apart, so that they have to be packed, and nobody else can use the
    slots.
    """

    def __init__(self, sizes: PoolSizes, settings: PrefixCacheSettings) -> None:
        self.packs = settings.states != EXACT
        self.tree = EvictingSlotPool(sizes.num_packed if self.packs else sizes.num_slots)
        self.rows: SlotPool = SlotPool(sizes.num_slots) if self.packs else self.tree


class StateRoom:
    """``slots`` of the states of ``tree``. gives_spare: whether rows have one of them from their beginning.

    Of slots that lie apart, one is left for the next sequence that ends: only when its state is in the tree, which may
    make others needless, ``tidy`` gives up the least. Exact states come in the slots of their rows.
    """

    def __init__(
        self, slots: StateSlots, tree: RadixTree, uses: StateUses, metrics: CacheMetrics, settings: PrefixCacheSettings
    ) -> None:
        self.gives_spare = tree.has_state and settings.mode == EXTRA_BUFFER
        self._packs, self._slots = slots.packs, slots.tree
        self._left = int(slots.packs)
        self.tidies = True
        self._tree, self._uses, self._metrics = tree, uses, metrics

    def for_state(self, memory: SequenceMemory, end: int, kind: Kind) -> int:
        """A slot for the state after ``end`` tokens: the row's own, a free one, or that of a state of less worth; -1
        where there is none."""
        prefix, slots = memory.prefix, self._slots
        assert prefix is not None
        if memory.spare != NONE:
            return memory.spare
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

    def forgone(self, taken: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        """As ``BlockAllocator.forgone``."""
        worths = {
            memory: memory.prefix.worth
            for memory, slot in taken.items()
            if slot not in (NONE, memory.spare) and memory.prefix is not None
        }
        if self._packs or self._slots.unowned or not worths:
            return None
        memory, least = min(worths, key=worths.__getitem__), self._tree.least_state()
        return memory if least is None or worths[memory] < least else None

    def give_back(self, memory: SequenceMemory, slot: int) -> None:
        """The tree has no need of ``slot``, which is nobody's."""
        if self.gives_spare and memory.spare == NONE:
            memory.spare = slot
        else:
            self._slots.release([slot])

    def tidy(self) -> None:
        """Leave a slot for the next sequence that ends."""
        if self.tidies and self._slots.unowned < self._left:
            self._tree.evict_state()

    def drop_chunk(self, node: Node) -> None:
        """Give up a state that only served while its prompt was under way, unless it is another one by now."""
        may_go = node.attached and node.state is not None and not node.state_locks and len(node.children) < 2
        if may_go and node.kind in (Kind.CHUNK, Kind.PASSED):
            self._tree.drop_state(node)

    def _worth(self, prefix: KnownPrefix, end: int, uses: float) -> float:
        """Of a new state after ``end`` tokens that may be used so often."""
        node = prefix.node
        start = 0 if node is None else node.end if node.state is not None else last_state(node)
        return self._tree.worth_of_new_state(start, end, uses)
