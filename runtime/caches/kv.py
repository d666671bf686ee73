"""KV caches of the attention layers. A model without attention layers makes every operation a no-op."""

from __future__ import annotations

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.names import past_key, past_value
from hybridge.runtime.caches.part import CachePart
from hybridge.runtime.caches.snapshot import KVSnapshot
from hybridge.runtime.engines.base import StateBuffer, StateSet


class KVCacheManager(CachePart[KVSnapshot]):
    """Keys and values per attention layer, over the rows of one state set.

    Positions from a row's length on are never read by the graph, so a row needs no clearing.
    """

    def __init__(self, config: RuntimeConfig, states: StateSet, lengths: list[int]) -> None:
        self.num_layers = len(config.kv_layers)
        names = tuple(name for k in range(self.num_layers) for name in (past_key(k), past_value(k)))
        super().__init__(states, lengths, names, KVSnapshot)

    def keys(self, layer: int) -> StateBuffer:
        """Key cache [rows, kv_heads, capacity, head_dim] of the local ``layer``; valid until the next step."""
        return self._states.buffers[past_key(layer)]

    def values(self, layer: int) -> StateBuffer:
        """Value cache of the local ``layer``, shaped like ``keys``."""
        return self._states.buffers[past_value(layer)]

    def restore(self, row: int, snapshot: KVSnapshot) -> None:
        """Put ``snapshot`` into ``row``, growing the caches if they are too short; RequestError if it does not fit."""
        self.check_fit(snapshot)
        if self.num_layers:
            self._states.reserve(snapshot.length)
        super().restore(row, snapshot)
