"""The pools of a loop with their managers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hybridge.artifact.limits import PROMPT_LOGITS_BYTES
from hybridge.runtime.blocks import BlockManager, CacheNeeds
from hybridge.runtime.blocks.block_prefix_cache import block_cache
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.prefix_cache.settings import BLOCKS, RADIX
from hybridge.runtime.scheduler import Scheduler, SchedulerSettings
from hybridge.runtime.serving.pools import (
    CacheSlots,
    PoolReport,
    ServingShape,
    filled_pools,
    memory_budget,
    pools_in,
    state_share,
)
from hybridge.runtime.serving.settings import ServingSettings

if TYPE_CHECKING:
    from hybridge.runtime.serving.prefix_cache import ServedCache

FEW_STATES = 32
"""Default pools with room for fewer cached states are worth a warning."""


@dataclass(frozen=True)
class LoopMemory:
    """cache: None without a radix tree."""

    pools: PoolReport
    manager: BlockManager
    scheduler: Scheduler
    cache: ServedCache | None


def loop_memory(engine: PagedEngine, settings: ServingSettings, shape: ServingShape) -> LoopMemory:
    """Replace the pools of ``engine``. EngineError when they cannot hold one sequence."""
    needs = CacheNeeds.of_model(engine.config)
    cache = settings.cache(engine.pools_grow)
    cached = cache.kind == RADIX
    requested = CacheSlots(cache.cached_states, cache.states) if cached else None
    if engine.pools_grow:
        pools = filled_pools(engine, needs, shape, settings.memory_bytes, requested)
    else:
        budget = memory_budget(engine, shape, settings.memory_bytes, settings.memory_utilization, cached)
        pools = pools_in(engine, needs, shape, budget, requested)
        if cached and needs.state and cache.cached_states is None and settings.memory_bytes is None:
            _warn_of_few_states(pools, shape, budget)
    sizes = pools.sizes
    engine.allocate_pools(sizes)
    radix = None
    if cached:
        from hybridge.runtime.serving.prefix_cache import ServedCache, radix_cache

        radix = radix_cache(sizes, needs, cache)
        needs = replace(needs, window=None)  # the tree keeps the blocks that a sliding window has passed
    manager = BlockManager(
        sizes.block_size,
        needs,
        shape.max_rows,
        shape.max_seq_len,
        radix or block_cache(sizes, needs, cache.kind == BLOCKS),
        takes_checkpoints=engine.takes_checkpoints and cache.states == EXACT,
    )
    engine.watch_usage(manager.pool.in_use, manager.slots.in_use)
    scheduler = Scheduler(
        manager,
        SchedulerSettings(
            shape.max_tokens,
            shape.max_rows,
            shape.max_seq_len,
            settings.policy,
            settings.swap_bytes,
            pools.block_bytes,
            pools.slot_bytes,
            prompt_logits=max(1, PROMPT_LOGITS_BYTES // (4 * engine.config.vocab_size)),
        ),
    )
    return LoopMemory(pools, manager, scheduler, None if radix is None else ServedCache(radix, engine, scheduler))


def _warn_of_few_states(pools: PoolReport, shape: ServingShape, budget: int) -> None:
    """``budget``: the bytes given for ``pools``."""
    sizes = pools.sizes
    states = max(0, sizes.num_slots - shape.max_rows) if sizes.packed == EXACT else sizes.num_packed - 1
    if states < FEW_STATES:
        longest = shape.blocks_of_longest * pools.block_bytes
        enough = budget + (FEW_STATES - states) * state_share(pools.cached_bytes, longest)
        warnings.warn(
            f"the prefix cache has room for {states} states, and every prompt or chat to continue takes one: set "
            f"memory_bytes to {enough} for {FEW_STATES}, or lower max_rows or max_seq_len",
            RuntimeWarning,
            stacklevel=2,
        )
