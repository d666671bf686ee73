"""A radix tree as a prefix cache: sequences begin with KV and states from the tree, and return theirs to it.

The tree has its own references to blocks, and owns slots. Its blocks are never written to: a sequence that
continues inside one gets a copy first. To make room for running sequences, the tree evicts the least valuable entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks.cached_block_pool import CachedBlockPool
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.prefix_cache import Checkpoint, PrefixCache, PrefixMatch
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.blocks.slot_pool import EvictingSlotPool
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.prefix_cache.branch_lengths import BranchLengths
from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.checkpoint_positions import checkpoint_positions
from hybridge.runtime.prefix_cache.checkpoint_slots import CheckpointSlots, StateSlots
from hybridge.runtime.prefix_cache.events import EventLog
from hybridge.runtime.prefix_cache.evicted_prefixes import EvictedPrefixes
from hybridge.runtime.prefix_cache.eviction_policy import EvictionPolicy
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.past_prompts import PastPrompts
from hybridge.runtime.prefix_cache.pins import Pins
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.readers import Readers
from hybridge.runtime.prefix_cache.settings import EARLY, NO_CHECKPOINTS, PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_tree import TreeMatch
from hybridge.runtime.prefix_cache.uses import StateUses


class _TreeBlocks:
    """The tree's references."""

    def __init__(self, pool: CachedBlockPool) -> None:
        self._pool = pool

    def retain(self, blocks: Sequence[int]) -> None:
        self._pool.retain_cached(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        self._pool.release_cached(blocks)


class RadixCache(PrefixCache):
    """See the module. Its pools are of ``sizes``: of blocks, ``slots`` of the rows, and of the tree's ``states``.

    packs: whether the states are stored in 8 bits, in a separate pool.
    """

    pool: CachedBlockPool
    states: EvictingSlotPool

    def __init__(
        self,
        sizes: PoolSizes,
        needs: CacheNeeds,
        settings: PrefixCacheSettings,
        policy: EvictionPolicy | None = None,
    ) -> None:
        self._slots = slots = StateSlots(sizes, settings)
        super().__init__(CachedBlockPool(sizes.num_blocks), slots.rows, slots.tree)
        self.block_size, self.packs, self.settings, self.needs = sizes.block_size, slots.packs, settings, needs
        self._policy = policy
        self.states.attach(self.evict_state, lambda: self.tree.free_states)
        self.metrics = CacheMetrics()
        self._plant(EventLog())
        self.pins = Pins(self.tree, self.pool)
        # Called with a node that is about to be evicted, for a slower memory.
        self.spill: Callable[[Node], None] = lambda node: None
        # Packs the state of a row's slot into a slot of ``states``; raises EngineError when it cannot.
        self.pack: Callable[[int, int], None] = lambda slot, state: None
        self._resets = False

    def _plant(self, events: EventLog) -> None:
        """Begin with an empty tree, which owns nothing."""
        needs = self.needs
        self.tree = RadixTree(
            _TreeBlocks(self.pool), self.states, self.block_size, needs.kv, needs.state, self._policy, events
        )
        self.tree.before_eviction = self._before_eviction
        self.uses, self.past, self.evicted = StateUses(self.tree), PastPrompts(), EvictedPrefixes()
        self._lengths = BranchLengths()
        self._checkpoints = CheckpointSlots(self._slots, self.tree, self.uses, self.metrics)
        self._readers = Readers(self.tree)

    def start_over(self) -> None:
        """Forget everything but the pinned prefixes, whose memory nothing has written to."""
        super().start_over()
        self.states.free_all(self.pins.states())
        self.tree.events.lose()
        self._plant(self.tree.events)
        self.pins.move(self.tree)

    def match(self, memory: SequenceMemory, reuse: bool = True) -> PrefixMatch:
        prefix = memory.prefix if isinstance(memory.prefix, RadixPrefix) else RadixPrefix()
        prefix.cacheable = len(memory.tokens) - 1
        key = prefix.key(memory.tokens, prefix.cacheable)
        match = self.tree.match(key if reuse else b"", memory.namespace)
        prefix.length, prefix.known, prefix.prompt = match.length, match.known, len(memory.tokens)
        prefix.branch_point = self.past.branch_point(memory.namespace, key)
        prefix.stops = self._positions(match, memory, prefix.branch_point)
        stop = prefix.next_stop(match.length, self.settings.decode_interval)
        if not match.length:
            return PrefixMatch(stop=stop, prefix=prefix)
        self._readers.begin(prefix, match.node)
        state = NONE if match.node.state is None or not self.needs.state else match.node.state
        return PrefixMatch(match.length, self.tree.blocks_of(match.node, match.length), state, stop, prefix)

    def begin(self, memory: SequenceMemory) -> None:
        prefix = RadixPrefix.of(memory)
        if prefix.node is not None:
            self.uses.resumed(prefix.node)
            self._readers.admit(memory)
            if memory.source == NONE:
                self.state_copied(memory)
        cacheable_key = prefix.key(memory.tokens, prefix.cacheable)
        branch_point = max(prefix.known, prefix.branch_point)
        self.past.add(memory.namespace, cacheable_key)
        self.uses.looked_up(memory.namespace, cacheable_key, memory.length)
        if memory.length < branch_point < prefix.cacheable:
            self._lengths.add(branch_point)
        self.metrics.looked_up(self.tree, self.evicted, memory, prefix)

    def release(self, memory: SequenceMemory) -> None:
        self._readers.leave(memory)

    def insert(self, memory: SequenceMemory, ended: bool = False) -> bool:
        """Insert ended sequences and parts of prompts without states; ``insert_checkpoint`` those with states."""
        prefix = RadixPrefix.of(memory)
        if ended:
            return self._insert_end(memory, prefix)
        if not self.needs.state and prefix.length < memory.length <= prefix.prompt:
            self._insert(memory, memory.length, NONE, CheckpointKind.END)
        return False

    def evict(self, blocks: int) -> bool:
        if self.pool.available < blocks:
            return False
        while self.pool.free < blocks:
            if not self.evict_kv() and not self._readers.release_kv_locks():
                return False
        return True

    def clear(self) -> None:
        self._readers.release_kv_locks()
        self._resets = True
        try:
            self.tree.clear()
        finally:
            self._resets = False

    def checkpoints(self, memory: SequenceMemory, end: int) -> Sequence[Checkpoint]:
        prefix = RadixPrefix.of(memory)
        stops = prefix.stops_until(end, memory.stop, self.settings.decode_interval)
        if not self.needs.state:
            return [Checkpoint(stop, NONE) for stop, _ in stops]
        found: list[Checkpoint] = []
        for stop, kind in stops:
            slot = self._checkpoints.slot_for(memory, stop, kind, found[-1].tokens if found else 0)
            found.append(Checkpoint(stop, slot))
        return found

    def insert_checkpoint(self, memory: SequenceMemory, checkpoint: Checkpoint) -> int:
        prefix, (tokens, slot) = RadixPrefix.of(memory), checkpoint
        if slot != NONE or not self.needs.state:
            taken = self._insert(memory, tokens, slot, prefix.kind)
            if slot != NONE and not taken:
                self.states.release([slot])
        return prefix.next_stop(tokens, self.settings.decode_interval)

    def checkpoint_to_skip(self, slots: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        return self._checkpoints.checkpoint_to_skip(slots)

    def state_copied(self, memory: SequenceMemory) -> None:
        self._readers.copied(memory)

    def can_take_state(self, memory: SequenceMemory) -> bool:
        node = RadixPrefix.of(memory).node
        return memory.source != NONE and node is not None and node.state_locks == 1 and not self.packs

    def take_state(self, memory: SequenceMemory) -> int:
        node = RadixPrefix.of(memory).node
        if node is None or not self.can_take_state(memory):
            return NONE
        self._before_eviction(node, False)
        return self.tree.take_state(node)

    def blocks(self) -> Iterable[int]:
        return chain((block for node in self.tree.walk() for block in node.blocks), self.pins.blocks())

    def state_slots(self) -> Iterable[int]:
        return (node.state for node in self.tree.walk() if node.state is not None)

    @contextmanager
    def keeping_ends(self) -> Iterator[None]:
        """Inside, the latest state at the end of a sequence is not evicted at once."""
        self._checkpoints.free_reserved_slot()
        self._checkpoints.frees_reserved_slot = False
        try:
            yield
        finally:
            self._checkpoints.frees_reserved_slot = True

    def evict_state(self) -> bool:
        """Evict the least valuable state; False when every state is locked."""
        return self.tree.evict_state()

    def evict_kv(self) -> bool:
        """Evict the least recently used leaf; False when every leaf is locked."""
        return self.tree.evict_kv()

    def _before_eviction(self, node: Node, whole: bool) -> None:
        cleared = self._resets
        if not cleared:
            self.metrics.evicted_leaves += whole
            self.metrics.evicted_states += node.state is not None
        if node.state is None and self.needs.state:
            return  # no prompt can resume there
        namespace, key = node.root.namespace, node.key
        self.uses.evicted(node, namespace, key)
        if not cleared:
            self.evicted.add(namespace, key)
            self.spill(node)

    def _positions(self, match: TreeMatch, memory: SequenceMemory, branch: int) -> list[tuple[int, CheckpointKind]]:
        chosen = self.settings.prompt_checkpoints
        if not self.needs.state or chosen == NO_CHECKPOINTS:
            return []
        expected, given = self._lengths.expected(), memory.checkpoints
        return checkpoint_positions(match, len(memory.tokens), branch, expected, chosen == EARLY, given)

    def _insert_end(self, memory: SequenceMemory, prefix: RadixPrefix) -> bool:
        slot = self._packed(memory, prefix) if self.packs else memory.slot
        if slot is None:
            return False
        taken = self._insert(memory, memory.length, slot, CheckpointKind.END)
        self._checkpoints.free_reserved_slot()
        return taken and not self.packs

    def _packed(self, memory: SequenceMemory, prefix: RadixPrefix) -> int | None:
        """A slot of ``states`` with a copy of the row's state; -1 if the tree needs none, None if it has no room."""
        key = prefix.key(memory.tokens, memory.length)
        if not self.needs.state or self.tree.match(key, memory.namespace).length == memory.length:
            return NONE
        slot = self._checkpoints.slot_for(memory, memory.length, CheckpointKind.END)
        if slot == NONE:
            return None
        try:
            self.pack(memory.slot, slot)
        except EngineError:
            self.states.release([slot])
            return None
        return slot

    def _insert(self, memory: SequenceMemory, tokens: int, slot: int, kind: CheckpointKind) -> bool:
        """Insert KV and state of the first ``tokens`` tokens, locked while the sequence runs; whether the tree took the
        state."""
        key = RadixPrefix.of(memory).key(memory.tokens, tokens)
        node, taken = self.tree.insert(key, memory.blocks, None if slot == NONE else slot, memory.namespace)
        self.metrics.inserted_states += taken
        self._readers.move(memory, node)
        if taken:
            self.uses.inserted(node, kind)
        return taken
