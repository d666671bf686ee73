"""KV caches of the attention layers. A model without attention layers makes every operation a no-op."""

from __future__ import annotations

import numpy as np

from artifact.config import RuntimeConfig
from artifact.names import past_key, past_value
from runtime.caches.snapshot import KVSnapshot, check_fit, read_states, write_states
from runtime.engines.base import StateBuffer, StateSet


class KVCacheManager:
    """Keys and values per attention layer, over the rows of one state set.

    ``lengths`` [rows] int32 counts the tokens in each row's caches and is shared with the other managers of the
    set. Positions from a row's length on are never read by the graph, so a row needs no clearing.
    """

    def __init__(self, config: RuntimeConfig, states: StateSet, lengths: np.ndarray) -> None:
        self._states = states
        self._lengths = lengths
        self.num_layers = len(config.kv_layers)
        self._names = tuple(name for k in range(self.num_layers) for name in (past_key(k), past_value(k)))

    def keys(self, layer: int) -> StateBuffer:
        """Key cache [rows, kv_heads, capacity, head_dim] of the local ``layer``; valid until the next step."""
        return self._states.buffers[past_key(layer)]

    def values(self, layer: int) -> StateBuffer:
        """Value cache of the local ``layer``, shaped like ``keys``."""
        return self._states.buffers[past_value(layer)]

    def capture(self, row: int) -> KVSnapshot:
        """A frozen copy of the tokens in ``row``."""
        length = int(self._lengths[row])
        return KVSnapshot(length, read_states(self._states, self._names, row, length))

    def check_fit(self, snapshot: KVSnapshot) -> None:
        """Raise RequestError when ``snapshot`` is of another model or engine."""
        check_fit(self._states, self._names, snapshot)

    def restore(self, row: int, snapshot: KVSnapshot) -> None:
        """Put ``snapshot`` into ``row``, growing the caches if they are too short; RequestError if it does not fit."""
        self.check_fit(snapshot)
        if self.num_layers:
            self._states.reserve(snapshot.length)
        write_states(self._states, row, snapshot)
        self._lengths[row] = snapshot.length

    def copy_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target``."""
        buffers = self._states.buffers
        for name in self._names:
            buffers[name].copy_row(source, target)
        self._lengths[target] = self._lengths[source]
