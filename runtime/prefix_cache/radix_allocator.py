"""The radix tree as the allocator of blocks and slots: sequences begin with what it has, and leave it what they made.

The tree keeps references of its own to blocks, and owns slots. Blocks that it has are never written to: a sequence that
goes on inside such a block gets a copy first. What the tree has gives way, least worth first, to sequences that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks.allocator import BlockAllocator
from hybridge.runtime.blocks.kept_block_pool import KeptBlockPool
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.prefix_cache.branch_lengths import BranchLengths
from hybridge.runtime.prefix_cache.ghosts import Ghosts
from hybridge.runtime.prefix_cache.kinds import Kind
from hybridge.runtime.prefix_cache.known_prefix import KnownPrefix
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.past_prompts import PastPrompts
from hybridge.runtime.prefix_cache.path_cap import thin_path
from hybridge.runtime.prefix_cache.pins import Pins
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.readers import Readers
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.state_room import StateRoom, StateSlots
from hybridge.runtime.prefix_cache.stops import wanted_stops
from hybridge.runtime.prefix_cache.tuner import AlphaTuner
from hybridge.runtime.prefix_cache.uses import StateUses
from hybridge.runtime.prefix_cache.worth import ValueWorth, Worth


class _TreeBlocks:
    """The tree's references."""

    def __init__(self, pool: KeptBlockPool) -> None:
        self._pool = pool

    def retain(self, blocks: Sequence[int]) -> None:
        self._pool.keep(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        self._pool.drop(blocks)


class RadixAllocator(BlockAllocator):
    """See the module. Its pools are of ``sizes``: of blocks, ``slots`` of the rows, and of the tree's ``states``.

    packs: whether the states are kept in 8 bits, in a pool of their own.
    """

    pool: KeptBlockPool

    def __init__(
        self,
        sizes: PoolSizes,
        needs: CacheNeeds,
        settings: PrefixCacheSettings,
        worth: Worth | None = None,
        tuner: AlphaTuner | None = None,
    ) -> None:
        """``tuner`` finds the alpha of a ValueWorth."""
        super().__init__(KeptBlockPool(sizes.num_blocks), sizes.block_size)
        self.settings, self.needs = settings, needs
        slots = StateSlots(sizes, settings)
        self.packs, self.states, self.slots = slots.packs, slots.tree, slots.rows
        self.tree = RadixTree(_TreeBlocks(self.pool), self.states, sizes.block_size, needs.kv, needs.state, worth)
        self.uses = StateUses(self.tree)
        self.past = PastPrompts()
        self.states.attach(self.evict_state, lambda: self.tree.free_states)
        self.tuner = tuner
        self.tree.before_eviction = self._before_eviction
        self.metrics = CacheMetrics()
        self.ghosts = Ghosts()
        self._lengths = BranchLengths()
        self._room = StateRoom(slots, self.tree, self.uses, self.metrics, settings)
        self.gives_spare = self._room.gives_spare
        # Called with a node that is about to be given up, for a slower memory.
        self.spill: Callable[[Node], None] = lambda node: None
        # Called with a row's slot and one of ``states`` that is to hold the same, packed; EngineError when it cannot.
        self.pack: Callable[[int, int], None] = lambda slot, state: None
        self._readers = Readers(self.tree)
        self._resets = False
        self.pins = Pins(self.tree, self.pool)

    @property
    def free(self) -> int:
        return self.pool.free + self.pool.idle

    def allocate(self, count: int) -> list[int]:
        self.make_room(count)
        return self.pool.allocate(count)

    def release(self, blocks: Sequence[int]) -> None:
        self.pool.release(blocks)

    def make_room(self, count: int, spare: int = 0) -> bool:
        if self.free < count + spare:
            return False
        while self.pool.free < count:
            if not self.evict_kv() and not self._readers.let_go():
                return False
        return True

    def adopt(self, memory: SequenceMemory) -> None:
        prefix = memory.prefix = memory.prefix or KnownPrefix()
        prefix.asked = len(memory.tokens) - 1
        key = prefix.key(memory.tokens, prefix.asked)
        match = self.tree.match(b"" if memory.computes_all else key, memory.namespace)
        prefix.length, prefix.known, prefix.prompt = match.length, match.known, len(memory.tokens)
        expected = self._lengths.expected()
        parted = self.past.parted(memory.namespace, key)
        prefix.stops = wanted_stops(self.settings, self.needs, match, len(memory.tokens), expected, parted)
        memory.stop = prefix.next_stop(match.length, self.settings.decode_interval)
        if not match.length:
            return
        self._readers.begin(memory, match.node)
        memory.blocks = self.tree.blocks_of(match.node, match.length)
        self.pool.retain(memory.blocks)
        memory.length = memory.writable = match.length
        if match.node.state is not None and self.needs.state:
            memory.source = match.node.state

    def admit(self, memory: SequenceMemory) -> None:
        prefix = memory.prefix
        assert prefix is not None
        if prefix.node is not None:
            self.uses.resumed(prefix.node)
            self._readers.admit(memory)
            if memory.source == NONE:
                self.resumed(memory)
        asked = prefix.key(memory.tokens, prefix.asked)
        parted = self.past.parted(memory.namespace, asked)
        if self.tuner is not None and self.tuner.begin(asked, memory.namespace, self._lengths.expected(), parted):
            self._tuned(self.tuner.alpha)
        self.past.add(memory.namespace, asked)
        self.uses.asked(memory.namespace, asked, memory.length)
        if memory.length < max(prefix.known, parted) < prefix.asked:
            self._lengths.add(max(prefix.known, parted))
        self.metrics.looked_up(self.tree, self.ghosts, memory, prefix)

    def resumed(self, memory: SequenceMemory) -> None:
        memory.source = NONE
        self._readers.copied(memory)

    def may_steal(self, memory: SequenceMemory) -> bool:
        node = None if memory.prefix is None else memory.prefix.node
        return memory.source != NONE and node is not None and node.state_locks == 1 and not self.packs

    def steal(self, memory: SequenceMemory) -> None:
        assert memory.prefix is not None and memory.prefix.node is not None
        self._before_eviction(memory.prefix.node, False)
        memory.slot, memory.source = self.tree.take_state(memory.prefix.node), NONE

    def publish(self, memory: SequenceMemory) -> None:
        """Parts of a prompt without states; with states, ``reached`` does it."""
        prefix = memory.prefix
        if prefix is None or self.needs.state or not memory.exact:
            return
        if memory.row != NONE and prefix.length < memory.length <= prefix.prompt:
            self._insert(memory, NONE, Kind.CHUNK)

    def take_slot(self, memory: SequenceMemory, end: int) -> int | None:
        prefix = memory.prefix
        if prefix is None or not (end == memory.stop or self._is_chunk(prefix, end)):
            return None
        if not self.needs.state:
            return NONE
        return self._room.for_state(memory, end, prefix.kind if end == memory.stop else Kind.CHUNK)

    def forgone(self, taken: Mapping[SequenceMemory, int]) -> SequenceMemory | None:
        return self._room.forgone(taken)

    def reached(self, memory: SequenceMemory, slot: int) -> None:
        prefix = memory.prefix
        assert prefix is not None
        chunk, kind = True, Kind.CHUNK
        if memory.length >= memory.stop:
            chunk, kind = False, prefix.kind
            memory.stop = prefix.next_stop(memory.length, self.settings.decode_interval)
        if slot == NONE and self.needs.state:
            return
        if slot == memory.spare:
            memory.spare = NONE
        node, took = self._insert(memory, slot, kind)
        if slot != NONE and not took:
            self._room.give_back(memory, slot)
        if prefix.chunk is not None and prefix.chunk is not node:
            self._room.drop_chunk(prefix.chunk)
        prefix.chunk = node if chunk and took else None

    def donate(self, memory: SequenceMemory) -> None:
        if not memory.length:
            return
        prefix = memory.prefix = memory.prefix or KnownPrefix()
        if self.tuner is not None:
            self.tuner.end(prefix.key(memory.tokens, memory.length), memory.namespace)
        slot = self._packed(memory, prefix) if self.packs else memory.slot
        if slot is None:
            return
        chunk = prefix.chunk
        node, took = self._insert(memory, slot, Kind.END)
        if took and not self.packs:
            memory.slot = NONE
        if chunk is not None and chunk is not node:
            self._room.drop_chunk(chunk)
        self._room.tidy()

    def forget_all(self) -> None:
        self._readers.let_go()
        self._resets = True
        try:
            self.tree.clear()
        finally:
            self._resets = False

    @contextmanager
    def keeping_ends(self) -> Iterator[None]:
        """Inside, the latest state at the end of a sequence does not give way at once."""
        self._room.tidy()
        self._room.tidies = False
        try:
            yield
        finally:
            self._room.tidies = True

    def leave(self, memory: SequenceMemory) -> None:
        self._readers.leave(memory)
        memory.source = NONE
        if memory.prefix is not None:
            memory.prefix.chunk = None

    def cached(self) -> Iterable[int]:
        """Nothing that is free: what the tree has is in use."""
        return ()

    def held_blocks(self) -> Iterable[int]:
        return chain((block for node in self.tree.walk() for block in node.blocks), self.pins.held_blocks())

    def held_slots(self) -> Iterable[int]:
        return (node.state for node in self.tree.walk() if node.state is not None)

    def evict_state(self) -> bool:
        """Give up the state of the least worth; False when every state is locked."""
        return self.tree.evict_state()

    def evict_kv(self) -> bool:
        """Give up the leaf of the least worth; False when every leaf is locked."""
        return self.tree.evict_kv()

    def _before_eviction(self, node: Node, whole: bool) -> None:
        resumable = node.state is not None or not self.needs.state
        if resumable:
            self.uses.gone(node)
        if self._resets:
            return  # not for want of room
        self.metrics.evicted_leaves += whole
        self.metrics.evicted_states += node.state is not None
        if resumable:
            self.ghosts.add(node.root.namespace, node.key)
            self.spill(node)

    def _tuned(self, alpha: float) -> None:
        assert isinstance(self.tree.worth, ValueWorth)
        self.tree.worth.alpha = alpha
        self.tree.reorder()

    def _is_chunk(self, prefix: KnownPrefix, end: int) -> bool:
        """Whether a prompt is under way whose latest state is kept."""
        return self.settings.chunks and self.needs.state and prefix.length < end < prefix.asked

    def _packed(self, memory: SequenceMemory, prefix: KnownPrefix) -> int | None:
        """One of ``states`` with what the row's slot holds; -1 where the tree needs none, None where it has no room."""
        key = prefix.key(memory.tokens, memory.length)
        if not self.needs.state or self.tree.match(key, memory.namespace).length == memory.length:
            return NONE
        slot = self._room.for_state(memory, memory.length, Kind.END)
        if slot == NONE:
            return None
        if slot == memory.spare:
            memory.spare = NONE
        try:
            self.pack(memory.slot, slot)
        except EngineError:
            self._room.give_back(memory, slot)
            return None
        return slot

    def _insert(self, memory: SequenceMemory, slot: int, kind: Kind) -> tuple[Node, bool]:
        """Put all that ``memory`` holds into the tree, and keep it in use there while the sequence runs."""
        prefix = memory.prefix
        assert prefix is not None
        key = prefix.key(memory.tokens, memory.length)
        node, took = self.tree.insert(key, memory.blocks, None if slot == NONE else slot, memory.namespace)
        self.metrics.inserted_states += took
        if memory.length % self.block_size and self.needs.kv:
            memory.writable = min(memory.writable, memory.length)
        self._readers.move(memory, node)
        if took:
            self.uses.inserted(node, kind)
        if took and self.settings.path_states is not None:
            self.metrics.capped_states += thin_path(self.tree, node, self.settings.path_states)
        return node, took
