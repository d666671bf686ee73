"""Copies states and blocks of the tree to host memory and back, between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hybridge.runtime.blocks.records import Records, changes
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.token_key import key_length
from hybridge.runtime.prefix_cache.token_tree import TreeMatch


class Source(Protocol):
    """A resumable prefix on the host."""

    def block(self, index: int) -> HostCopy:
        """The block that begins at position index * block_size."""

    def state(self) -> HostCopy:
        """The slot."""


class DeviceCache:
    """The cache with the engine that owns its memory.

    Used only between steps and not while forked states wait to be copied, so that free memory stays free.
    """

    def __init__(self, cache: RadixCache, engine: PagedEngine, records: Records) -> None:
        self.cache, self.engine, self.records = cache, engine, records

    def blocks_out(self, blocks: Sequence[int]) -> HostCopy:
        """Blocks in host memory."""
        return self.engine.swap_out(blocks, [])

    def state_out(self, slot: int) -> HostCopy:
        """A state of the tree in host memory; 8-bit states are not converted."""
        return self.engine.packed_out(slot) if self.cache.packs else self.engine.swap_out([], [slot])

    def state_in(self, state: HostCopy, slot: int) -> None:
        """Write ``state``, packed or not, over a slot of the tree."""
        engine, cache = self.engine, self.cache
        if cache.packs:
            if not isinstance(state, PackedState):
                state = PackedState.of(engine.arrays_from_copy(state), cache.settings.states)
            engine.packed_in(state, slot)
        else:
            exact = engine.copy_from_arrays(state.arrays(), 0, 1) if isinstance(state, PackedState) else state
            engine.swap_in(exact, [], [slot])

    def arrays(self, blocks: Sequence[int], slot: int) -> dict[str, np.ndarray]:
        """Blocks and a state of the tree (-1: none) by pool, as ``PagedEngine.arrays_from_copy`` gives them."""
        engine, packs = self.engine, self.cache.packs
        exact = [] if slot == NONE or packs else [slot]
        arrays = engine.arrays_from_copy(engine.swap_out(blocks, exact))
        return arrays | engine.packed_out(slot).arrays() if packs and slot != NONE else arrays

    def copy_in(self, key: bytes, namespace: str, source: Source) -> bool:
        """Put a prefix into the tree, with its state and missing blocks; False when there is no room."""
        cache, length = self.cache, key_length(key)
        there, needs_state = cache.tree.match(key, namespace), cache.needs.state
        if there.length == length:
            cache.tree.touch(there.node)
            return True
        room = None
        try:
            room = self._room_for(key, namespace)
            if room is None:
                return False
            match, blocks, slot = room
            first = match.known // cache.block_size
            for index, block in enumerate(blocks, first):
                self.engine.swap_in(source.block(index), [block], [])
            if needs_state:
                self.state_in(source.state(), slot)
            self._insert(key, namespace, first, blocks, slot)
        except BaseException:
            if room is not None and self.records.torn is None:
                self._give_back(*room[1:])
            raise
        return cache.tree.match(key, namespace).length == length

    @changes
    def _insert(self, key: bytes, namespace: str, first: int, blocks: Sequence[int], slot: int) -> None:
        """Let the tree have ``blocks``, from that of index ``first`` on, and ``slot``."""
        cache = self.cache
        _, taken = cache.tree.insert(key, [NONE] * first + [*blocks], None if slot == NONE else slot, namespace)
        cache.pool.release(blocks)
        if slot != NONE and not taken:
            cache.states.release([slot])
        cache.metrics.restored_states += taken
        cache.metrics.restored_blocks += len(blocks)

    @changes
    def _give_back(self, blocks: Sequence[int], slot: int) -> None:
        self.cache.pool.release(blocks)
        self.cache.states.release([] if slot == NONE else [slot])

    @changes
    def _room_for(self, key: bytes, namespace: str) -> tuple[TreeMatch, list[int], int] | None:
        """The match of ``key`` in the tree, new blocks for the rest, and a slot (-1 without states)."""
        cache = self.cache
        slot = NONE
        if cache.pool.available < self._missing(cache.tree.match(key, namespace), key):
            return None  # before a state is evicted for it
        if cache.needs.state:
            if not cache.states.free:
                return None
            slot = cache.states.allocate()
        for _ in range(2):
            match = cache.tree.match(key, namespace)
            count = self._missing(match, key)
            # This may evict parts of this very prefix: only then match again.
            if (
                cache.pool.available >= count
                and cache.evict(count)
                and self._missing(cache.tree.match(key, namespace), key) == count
            ):
                return match, cache.pool.allocate(count), slot
        if slot != NONE:
            cache.states.release([slot])
        return None

    def _missing(self, match: TreeMatch, key: bytes) -> int:
        size = self.cache.block_size
        if not self.cache.needs.kv or match.known == key_length(key):
            return 0
        return -(-key_length(key) // size) - match.known // size
