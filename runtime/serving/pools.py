"""Sizes of the pools, and a report of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.runtime.blocks import CacheNeeds
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.serving.settings import GIB, ServingSettings

CACHED_SEQUENCES = 64
"""Sequences for which a prefix cache has room by default, on a CPU."""
FILLED_BYTES, FEWEST_CACHED = GIB // 4, 8
"""For pools that take memory only as they are filled: the prefix cache's default maximum, and the number of sequences
that always fit in it."""


@dataclass(frozen=True)
class ServingShape:
    """Rows, tokens of one step, tokens of one sequence and tokens of one block."""

    max_rows: int
    max_tokens: int
    max_seq_len: int
    block_size: int

    @property
    def blocks_of_longest(self) -> int:
        """Blocks of a sequence of full length, and one more: a shared block is copied before it is released."""
        return -(-self.max_seq_len // self.block_size) + 1


def serving_shape(engine: PagedEngine, settings: ServingSettings) -> ServingShape:
    """The settings with the engine's limits in place of None; SettingError for one beyond its limit."""
    limits, longest = engine.limits, engine.config.max_seq_len
    for name, value, limit in (
        ("max_rows", settings.max_rows, limits.max_rows),
        ("max_tokens", settings.max_tokens, limits.max_tokens),
        ("max_seq_len", settings.max_seq_len, longest),
    ):
        if value is not None and value > limit:
            raise SettingError(f"{name}: expected at most the engine's {limit}, found {value}")
    return ServingShape(
        settings.max_rows or limits.max_rows,
        settings.max_tokens or limits.max_tokens,
        settings.max_seq_len or longest,
        engine.block_size(settings.block_size),
    )


@dataclass(frozen=True)
class PoolReport:
    """The pools and what they and the engine take, in bytes. packed_bytes: of a state in 8 bits."""

    sizes: PoolSizes
    block_bytes: int
    slot_bytes: int
    engine_memory: Mapping[str, int]
    packed_bytes: int = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pools."""
        sizes = self.sizes
        states = sizes.num_slots * self.slot_bytes + sizes.num_packed * self.packed_bytes
        return sizes.num_blocks * self.block_bytes + states

    @property
    def cached_bytes(self) -> int:
        """Bytes of one state of the prefix cache."""
        return self.slot_bytes if self.sizes.packed == EXACT else self.packed_bytes

    def __str__(self) -> str:
        sizes = self.sizes
        parts = [f"{name} {_mib(size)}" for name, size in self.engine_memory.items()]
        if self.block_bytes:
            tokens = sizes.num_blocks * sizes.block_size
            parts.append(f"KV {_mib(sizes.num_blocks * self.block_bytes)} ({sizes.num_blocks} blocks, {tokens} tokens)")
        if self.slot_bytes:
            parts.append(f"states {_mib(sizes.num_slots * self.slot_bytes)} ({sizes.num_slots} slots)")
        if sizes.num_packed:
            cached = _mib(sizes.num_packed * self.packed_bytes)
            parts.append(f"{sizes.packed} states of the cache {cached} ({sizes.num_packed} slots)")
        return ", ".join(parts)


@dataclass(frozen=True)
class CacheSlots:
    """states: slots of a prefix cache; None: by ``state_share``. kind: "exact", or "int8" or "fp8" (packed)."""

    states: int | None
    kind: str = EXACT


def pools_in(
    engine: PagedEngine,
    needs: CacheNeeds,
    shape: ServingShape,
    budget: int,
    cache: CacheSlots | None = None,
) -> PoolReport:
    """Pools of at most ``budget`` bytes, and without a cache never more than all rows can use.

    A slot for every row, where these leave half of the budget to the blocks, else as many as sequences of full length
    fit; then slots for the prefix cache, in the memory that one sequence of full length leaves. Never more than the
    engine's ``pool_limits``.

    EngineError, naming the bytes that would suffice, when one sequence does not fit.
    """
    block, slot = engine.block_bytes(shape.block_size), engine.slot_bytes
    blocks_each = shape.blocks_of_longest if needs.kv else 0
    each = blocks_each * block + slot * needs.state
    if each > budget:
        raise EngineError(
            f"expected at least {each} bytes for the caches of one sequence of {shape.max_seq_len} tokens, found "
            f"{budget}: give them more (memory_bytes), or lower max_seq_len"
        )
    kind = EXACT if cache is None else cache.kind
    packed, packed_bytes = 0, 0 if kind == EXACT else engine.packed_slot_bytes(kind)
    slots = 0
    if needs.state:
        affordable = max(budget // each, budget // (2 * slot) if needs.kv else budget // slot)
        slots = min(shape.max_rows, affordable, (budget - blocks_each * block) // slot)
        if cache is not None:
            states = _cached_states(cache, budget - slots * slot, blocks_each * block, packed_bytes or slot)
            slots, packed = (slots + states, 0) if kind == EXACT else (slots, states)
    most_blocks, most_slots = engine.pool_limits or (None, None)
    if most_slots is not None:
        slots = min(slots, most_slots)
    left = budget - slots * slot - packed * packed_bytes
    blocks = 0
    if needs.kv:
        blocks = left // block if cache is not None else min(left // block, shape.max_rows * blocks_each)
    if most_blocks is not None:
        blocks = min(blocks, most_blocks)
    sizes = PoolSizes(blocks, shape.block_size, slots, packed, kind)
    return PoolReport(sizes, block, slot, dict(engine.memory_use()), packed_bytes)


def filled_pools(
    engine: PagedEngine, needs: CacheNeeds, shape: ServingShape, memory_bytes: int | None, cache: CacheSlots | None
) -> PoolReport:
    """Pools that take memory only as they are filled: no sequence that runs ever lacks a block or a slot.

    ``memory_bytes`` bounds what a prefix cache holds; by default that of CACHED_SEQUENCES of full length, at most
    FILLED_BYTES, but FEWEST_CACHED sequences in any case. EngineError for states in 8 bits, if the engine has none.
    """
    if cache is not None and cache.kind != EXACT:
        engine.packed_slot_bytes(cache.kind)
    block, slot = engine.block_bytes(shape.block_size), engine.slot_bytes
    each = max(1, block * needs.kv + slot * needs.state)
    most = max(FEWEST_CACHED, min(CACHED_SEQUENCES, FILLED_BYTES // each))
    if memory_bytes is not None:
        most = memory_bytes // each
    more = 0 if cache is None else most if cache.states is None else cache.states
    # While sequences continue from one block, each gets a copy before the first is released.
    blocks = (2 * shape.max_rows + more) * needs.kv
    sizes = PoolSizes(blocks, shape.block_size, (shape.max_rows + more) * needs.state)
    return PoolReport(sizes, block, slot, dict(engine.memory_use()))


def _cached_states(cache: CacheSlots, left: int, longest: int, state_bytes: int) -> int:
    """States of the prefix cache in ``left`` bytes, of which ``longest`` are for the blocks of one sequence."""
    own = left // state_share(state_bytes, longest) if cache.states is None else cache.states
    if cache.kind != EXACT and cache.states:
        own += 1  # for the state of a sequence that ends; an exact one stays in the slot of its row
    return max(0, min((left - longest) // state_bytes, own))


def state_share(state_bytes: int, longest: int) -> int:
    """Bytes of a default prefix cache per state; a sequence of full length has ``longest`` bytes of blocks.

    As much for blocks as for states, but at most those of a whole sequence: a model without attention needs none.
    """
    return state_bytes + min(state_bytes, longest)


def memory_budget(
    engine: PagedEngine, shape: ServingShape, memory_bytes: int | None, utilization: float, cached: bool = False
) -> int:
    """``memory_bytes`` if given, else what ``utilization`` of the device's memory leaves after the largest step.

    Where the free memory is unknown (a CPU): enough for all rows, at most 1 GiB but enough for one sequence; with
    a prefix cache (``cached``) what CACHED_SEQUENCES of full length take in addition, at most 1 GiB too.
    """
    if memory_bytes is not None:
        return memory_bytes
    free = engine.free_memory()
    if free is None:
        each = shape.blocks_of_longest * engine.block_bytes(shape.block_size) + engine.slot_bytes
        return max(each, min(GIB, shape.max_rows * each)) + cached * min(GIB, CACHED_SEQUENCES * each)
    run_largest_step(engine, shape)
    after = engine.free_memory()
    # The small pools of that step still exist and will be freed.
    return int((free if after is None else after) * utilization)


def run_largest_step(engine: PagedEngine, shape: ServingShape) -> None:
    """Run one step of as many tokens as there may be, in pools just large enough for it."""
    rows = min(shape.max_rows, shape.max_tokens)
    length = min(shape.max_tokens // rows, shape.max_seq_len)
    equal = EqualRows(engine, rows, length, shape.block_size)
    engine.step(equal.inputs(np.zeros((rows, length), np.int64), 0))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
