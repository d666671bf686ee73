"""The prefix cache of a serving loop."""

from __future__ import annotations

from runtime.blocks import CacheNeeds
from runtime.engines.paged import PagedEngine, PoolSizes
from runtime.prefix_cache.costs import costs_of_model
from runtime.prefix_cache.radix_allocator import RadixAllocator
from runtime.prefix_cache.settings import EXTRA_BUFFER, LRU, RADIX, PrefixCacheSettings
from runtime.prefix_cache.worth import LruWorth, ValueWorth, Worth
from runtime.serving.pools import CacheSlots, ServingShape


def cached_slots(settings: PrefixCacheSettings, shape: ServingShape) -> CacheSlots | None:
    """The slots that the cache wants beside those of the rows; None without a radix tree."""
    if settings.kind != RADIX:
        return None
    return CacheSlots(shape.max_rows if settings.mode == EXTRA_BUFFER else 0, settings.cached_states)


def radix_allocator(
    engine: PagedEngine, sizes: PoolSizes, needs: CacheNeeds, settings: PrefixCacheSettings
) -> RadixAllocator:
    """A radix tree over pools of ``sizes``."""
    worth: Worth = LruWorth()
    if settings.policy != LRU:
        costs = costs_of_model(
            engine.config, engine.block_bytes(sizes.block_size) // sizes.block_size, engine.slot_bytes
        )
        worth = ValueWorth(costs, 1.0 if settings.alpha is None else settings.alpha)
    return RadixAllocator(sizes, needs, settings, worth)
