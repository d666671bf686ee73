"""A real model's KV and states after given tokens, computed from scratch by a separate engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.bindings import NUM_BLOCKS
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.prefix_cache.token_key import tokens_from_key
from hybridge.runtime.serving.loop import ServingLoop

# float32, the same operators in other portions: docs/explanation/numerics.md.
TOLERANCE = 1e-5


class Oracle:
    """Whole sequences in one step, one block each."""

    def __init__(self, folder: Path, longest: int) -> None:
        self._engine = OnnxRuntimePagedEngine(folder, threads=1)
        self._engine.allocate_pools(PoolSizes(1, longest, 1))
        self._known: dict[tuple[int, ...], dict[str, np.ndarray]] = {}

    def after(self, tokens: Sequence[int]) -> dict[str, np.ndarray]:
        """By pool name: the state, or KV [2, tokens, heads, head_dim]."""
        key = tuple(tokens)
        if key not in self._known:
            self._engine.zero_slots([0])
            count = len(key)
            places = np.arange(count, dtype=np.int32)
            one = np.zeros(1, np.int32)
            self._engine.step(
                PackedInputs(
                    np.array(key, np.int64),
                    places.astype(np.int64),
                    np.array([0, count], np.int32),
                    np.array([count], np.int32),
                    one[None],
                    places,
                    one,
                    np.array([count - 1], np.int32),
                )
            )
            self._known[key] = read(self._engine, [0], 0, count)
        return self._known[key]

    def check(self, found: dict[str, np.ndarray], tokens: Sequence[int], tolerance: float = TOLERANCE) -> None:
        """AssertionError where something is not what it is after exactly ``tokens``."""
        for name, right in self.after(tokens).items():
            if name in found:
                error = np.linalg.norm(found[name] - right) / np.linalg.norm(right)
                assert error <= tolerance, f"{name} after {len(tokens)} tokens: relative error {error:.1e}"


def read(
    engine: PagedEngine, blocks: Sequence[int], slot: int, length: int, packed: bool = False
) -> dict[str, np.ndarray]:
    """The first ``length`` tokens of these blocks by pool, and the states of a slot (-1: none), ``packed`` or not."""
    values = {}
    kv = {spec.name for spec in engine.config.bindings.states if NUM_BLOCKS in spec.shape}
    arrays = engine.arrays_from_copy(engine.swap_out(blocks, [] if slot == NONE or packed else [slot]))
    if packed and slot != NONE:
        arrays |= engine.packed_out(slot).arrays()
    for name, array in arrays.items():
        if name in kv:
            values[name] = array.reshape(array.shape[0], -1, *array.shape[3:])[:, :length]
        elif slot != NONE:
            values[name] = array[0]
    return values


def check_all(loop: ServingLoop, engine: PagedEngine, oracle: Oracle, tolerance: float = TOLERANCE) -> None:
    """Every state and every block of the cache and of sequences between steps is what its tokens make it."""
    cache = loop.prefix_cache
    assert cache is not None
    for node in cache.tree.walk():
        if node.attached:
            tokens = tokens_from_key(node.key).tolist()
            slot = NONE if node.state is None else node.state
            found = read(engine, cache.tree.blocks_of(node), slot, node.end, cache.packs)
            oracle.check(found, tokens, tolerance)
    for sequence in loop.scheduler.sequences.values():
        memory = sequence.memory
        if memory.exact and memory.length:
            found = read(engine, memory.blocks, memory.slot, memory.length)
            oracle.check(found, memory.tokens[: memory.length], tolerance)


def poison(loop: ServingLoop, engine: OnnxRuntimePagedEngine | TorchPagedEngine) -> None:
    """NaN in every block and slot without an owner."""
    manager = loop.scheduler.manager
    blocks = [block for block in range(manager.pool.num_blocks) if not manager.pool.references(block)]
    sources = {source for source, _ in loop.scheduler._slot_copies}
    slots = [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    for spec in engine.config.bindings.states:
        onnx = isinstance(engine, OnnxRuntimePagedEngine)
        pool: Any = engine.pools.view(spec.name) if onnx else engine.pools.tensors[spec.name]
        if NUM_BLOCKS in spec.shape:
            pool[:, blocks] = np.nan
        else:
            pool[slots] = np.nan
    if manager.packs_states:
        free = [slot for slot in range(manager.states.num_slots) if not manager.states.in_use(slot)]
        for part in packed_parts(engine):
            part[free] = np.nan


def packed_parts(engine: OnnxRuntimePagedEngine | TorchPagedEngine) -> list[Any]:
    """The factors of all packed slots, and those of their states that are not packed."""
    if isinstance(engine, OnnxRuntimePagedEngine):
        slots = engine.pools.packed
        return [*(rows.factors for rows in slots.packed.values()), *slots.exact.values()]
    packed = engine.pools.packed
    return [*(layers.factors for layers in packed.layers), *packed.exact.values()]
