"""The prefix cache of a serving loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridge.runtime.blocks import CacheNeeds
from hybridge.runtime.blocks.records import changes
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.prefix_cache.eviction_policy import CostAwareEviction, LruEviction
from hybridge.runtime.prefix_cache.host_tier import HostTier
from hybridge.runtime.prefix_cache.metrics import CacheReport
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.settings import LRU, PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.transfer import DeviceCache
from hybridge.runtime.scheduler import ScheduledSequence, Scheduler
from hybridge.runtime.serving.pinned import PinnedPrefixes


def radix_cache(sizes: PoolSizes, needs: CacheNeeds, settings: PrefixCacheSettings) -> RadixCache:
    """A radix tree over pools of ``sizes``."""
    return RadixCache(sizes, needs, settings, LruEviction() if settings.policy == LRU else CostAwareEviction())


class ServedCache:
    """The prefix cache of a loop. Use it only between steps, and while ``scheduler.settled``."""

    def __init__(self, cache: RadixCache, engine: PagedEngine, scheduler: Scheduler) -> None:
        self.cache = cache
        self.device = DeviceCache(cache, engine, scheduler.records)
        self.pinned = PinnedPrefixes(cache, scheduler)
        self.host = HostTier(self.device, cache.settings.host_bytes) if cache.settings.host_bytes else None
        self._scheduler, self.records = scheduler, scheduler.records
        self._seen: set[ScheduledSequence] = set()
        cache.pack = lambda slot, state: engine.pack_slots([slot], [state])
        if self.host is not None:
            cache.spill = self.host.spill

    @changes
    def restore(self) -> None:
        """Copy back from host memory what the next requests begin with; earlier requests keep theirs."""
        if self.host is None or not self._scheduler.settled:
            return
        waiting, tree = self._scheduler.first_waiting(), self.cache.tree
        begins: list[Node] = []
        try:
            for sequence in () if self._seen.issuperset(waiting) else waiting:
                key, namespace = key_from_tokens(sequence.tokens[:-1]), sequence.memory.namespace
                if sequence not in self._seen:
                    self.host.restore(key, namespace)
                begins.append(tree.match(key, namespace).node)
                tree.lock(begins[-1])
        finally:
            for node in begins:
                tree.unlock(node)
        self._seen = set(waiting)

    def start_over(self) -> None:
        """The cache has started over: it has pinned prefixes alone."""
        self._seen = set()
        self.pinned.start_over()
        if self.host is not None:
            self.host.start_over()

    @changes
    def bring_back(self, tokens: Sequence[int], namespace: str) -> None:
        """Copy the cached prefix of ``tokens`` back from host memory, as far as the device has room."""
        if self.host is not None:
            self.host.restore(key_from_tokens(tokens), namespace)

    def report(self, state_bytes: int) -> CacheReport:
        """The contents of the cache."""
        cache = self.cache
        return CacheReport(
            cache.tree.nodes,
            cache.tree.states,
            self.device.engine.kv_bytes(cache.pool.cached_blocks(), cache.block_size),
            cache.tree.states * state_bytes,
            0 if self.host is None else self.host.nbytes,
            tuple(self.pinned.names()),
            replace(cache.metrics, misses=cache.metrics.misses.copy()),
        )
