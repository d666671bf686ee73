"""One front for all states of a hybrid model: routes layers, moves whole rows and grows the caches in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridge.artifact.config import ATTENTION, RECURRENT_LAYER_TYPES
from hybridge.artifact.errors import RequestError
from hybridge.runtime.caches.kv import KVCacheManager
from hybridge.runtime.caches.mamba import MambaCacheManager
from hybridge.runtime.caches.snapshot import RowSnapshot
from hybridge.runtime.engines.base import Engine, StateSet

# KV caches start with room for this many tokens and double when they are full: a decode step then costs what the
# tokens present cost (at most twice), and all growth together copies no more than the last size.
FIRST_CAPACITY = 256


@dataclass(frozen=True)
class LayerRoute:
    """Where an absolute layer keeps its state: the manager and the layer's local index in it."""

    manager: KVCacheManager | MambaCacheManager
    local_index: int


class HybridCacheManager:
    """All states of ``rows`` batch rows, zeroed, with room for ``tokens`` tokens at first.

    A row is always consistent over all layers: its KV caches hold, and its recurrent states have consumed, exactly
    ``lengths[row]`` tokens. Whoever runs a step adds the new tokens to ``lengths`` when it succeeded.
    """

    def __init__(self, engine: Engine, rows: int, tokens: int = 0) -> None:
        self._engine = engine
        self._adopt(engine.allocate_states(rows, capacity_for(tokens, engine.max_seq_len)))

    @property
    def rows(self) -> int:
        """The number of batch rows."""
        return self.states.batch

    def route(self, layer: int) -> LayerRoute | None:
        """The place of the state of the absolute ``layer``; None for a layer without state (MLP, MoE)."""
        types = self._engine.config.layer_types
        if not 0 <= layer < len(types):
            raise IndexError(f"expected a layer from 0 to {len(types) - 1}, found {layer}")
        if types[layer] == ATTENTION:
            return LayerRoute(self.kv, types[:layer].count(ATTENTION))
        if types[layer] in RECURRENT_LAYER_TYPES:
            return LayerRoute(self.mamba, sum(kind in RECURRENT_LAYER_TYPES for kind in types[:layer]))
        return None

    def clear_states(self, rows: Sequence[int] | None = None) -> None:
        """Forget all tokens of ``rows`` (of every row by default)."""
        self.mamba.clear_states(rows)

    def capture(self, row: int) -> RowSnapshot:
        """A frozen copy of everything that ``row`` knows."""
        return RowSnapshot(self.lengths[row], self.kv.capture(row), self.mamba.capture(row))

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Make ``row`` what it was when ``snapshot`` was taken.

        RequestError, before anything is written, when the parts disagree in length or do not fit this model.
        """
        if not snapshot.length == snapshot.kv.length == snapshot.mamba.length:
            raise RequestError(
                f"expected KV caches and recurrent states of one length, found {snapshot.kv.length} and "
                f"{snapshot.mamba.length} tokens in a snapshot of {snapshot.length}: capture the row again"
            )
        self.kv.check_fit(snapshot.kv)
        self.mamba.check_fit(snapshot.mamba)
        self.reserve(snapshot.length)
        self.kv.restore(row, snapshot.kv)
        self.mamba.restore(row, snapshot.mamba)
        self.lengths[row] = snapshot.length

    def copy_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target``."""
        self.kv.copy_row(source, target)
        self.mamba.copy_row(source, target)
        self.lengths[target] = self.lengths[source]

    def take_row(self, other: HybridCacheManager, source: int, target: int) -> None:
        """Copy row ``source`` of ``other`` (same engine) over row ``target`` of this manager."""
        length = other.lengths[source]
        self.reserve(length)
        mine, theirs = self.states.buffers, other.states.buffers
        for name, buffer in theirs.items():
            mine[name].take_row(target, buffer, source, length)
        self.lengths[target] = length

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in every row's caches; RequestError beyond the engine's max_seq_len."""
        if tokens > self.states.max_seq:
            self.states.reserve(max(tokens, capacity_for(tokens, self._engine.max_seq_len)))

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only ``rows``, in the order given: row ``rows[i]`` becomes row i. The memory of the others is freed."""
        kept = HybridCacheManager(self._engine, len(rows), max([self.lengths[row] for row in rows]))
        for target, source in enumerate(rows):
            kept.take_row(self, source, target)
        self._adopt(kept.states, kept.lengths)

    def _adopt(self, states: StateSet, lengths: list[int] | None = None) -> None:
        config = self._engine.config
        self.states = states
        self.lengths = [0] * states.batch if lengths is None else lengths
        self.kv = KVCacheManager(config, states, self.lengths)
        self.mamba = MambaCacheManager(config, states, self.lengths)


def capacity_for(tokens: int, limit: int) -> int:
    """The cache size to allocate for ``tokens`` tokens: FIRST_CAPACITY doubled until it fits, at most ``limit``."""
    capacity = FIRST_CAPACITY
    while capacity < tokens:
        capacity *= 2
    return min(capacity, limit)
