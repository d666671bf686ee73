"""Caches of the batch rows of a dense engine, by the names that users of TensorRT Edge-LLM know.

For code that steps an engine itself, as ``hybridge.accelerate`` does; LLM and AsyncLLM share memory in other ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hybridge.artifact.bindings import MAX_SEQ
from hybridge.artifact.errors import RequestError
from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import ATTENTION_LAYER_TYPES, RECURRENT_LAYER_TYPES
from hybridge.artifact.names import conv_state, past_key, past_value, recurrent_state
from hybridge.runtime.engines.capacity import capacity_for
from hybridge.runtime.engines.dense import DenseEngine, StateBuffer


@dataclass(frozen=True)
class RowSnapshot:
    """States of one row after exactly ``length`` tokens: read-only arrays by name, caches cut to that length."""

    length: int
    states: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Host memory that the arrays take, in bytes."""
        return sum(array.nbytes for array in self.states.values())


class _Part:
    """Some states of all rows of ``owner``, row by row."""

    def __init__(self, owner: HybridCacheManager, layers: int, names: Sequence[str]) -> None:
        self.num_layers, self._owner = layers, owner
        declared = owner.states.buffers
        self._names = [name for name in names if name in declared]

    def capture(self, row: int) -> RowSnapshot:
        """A frozen copy of the states of ``row``."""
        length, buffers, arrays = self._owner.lengths[row], self._owner.states.buffers, {}
        for name in self._names:
            arrays[name] = buffers[name].read_row(row, length)
            arrays[name].setflags(write=False)
        return RowSnapshot(length, MappingProxyType(arrays))

    def check_fit(self, snapshot: RowSnapshot) -> None:
        """RequestError when ``snapshot`` is of another model or engine."""
        if set(snapshot.states) != set(self._names):
            raise RequestError(
                f"expected a snapshot of {len(self._names)} states, found {len(snapshot.states)}: it belongs to "
                "another model"
            )
        buffers = self._owner.states.buffers
        for name, array in snapshot.states.items():
            spec = buffers[name].spec
            shape = spec.resolve(batch=1, **{MAX_SEQ: snapshot.length})[1:]
            if array.dtype != spec.dtype.numpy or array.shape != shape:
                raise RequestError(
                    f"{name}: expected a snapshot of {spec.dtype.value}{list(shape)}, found {array.dtype}"
                    f"{list(array.shape)}: it belongs to another model or engine"
                )

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put ``snapshot`` into ``row``; RequestError, before anything is written, if it does not fit."""
        self.check_fit(snapshot)
        self._owner.reserve(snapshot.length)
        buffers = self._owner.states.buffers
        for name, array in snapshot.states.items():
            if array.size:
                buffers[name].write_row(row, array)
        self._owner.lengths[row] = snapshot.length

    def _buffer(self, name: str) -> StateBuffer | None:
        return self._owner.states.buffers.get(name)


class KVCacheManager(_Part):
    """Keys and values of the attention layers. Positions past a row's length have no weight."""

    def __init__(self, owner: HybridCacheManager, layers: int) -> None:
        super().__init__(owner, layers, [name for k in range(layers) for name in (past_key(k), past_value(k))])

    def clear_tokens(self, rows: Sequence[int]) -> None:
        """Zero the tokens of ``rows``: engines may multiply positions without weight by 0, and a NaN would stay one."""
        buffers = self._owner.states.buffers
        for row in rows:
            for name in self._names:
                buffers[name].zero_rows([row], self._owner.lengths[row])

    def keys(self, layer: int) -> StateBuffer | None:
        """Key cache [rows, kv_heads, capacity, head_dim] of the local ``layer``; valid until the next step."""
        return self._buffer(past_key(layer))

    def values(self, layer: int) -> StateBuffer | None:
        """Value cache of the local ``layer``, shaped like ``keys``; None where keys are the values."""
        return self._buffer(past_value(layer))


class MambaCacheManager(_Part):
    """Convolution and recurrent states, with their scales and rings; a short convolution has no recurrent state."""

    def __init__(self, owner: HybridCacheManager, layers: Sequence[RecurrentLayerConfig]) -> None:
        names = [name for name, buffer in owner.states.buffers.items() if not buffer.spec.grows]
        super().__init__(owner, len(layers), names)

    def conv_state(self, layer: int) -> StateBuffer | None:
        """Convolution state [rows, conv_dim, conv_kernel] of the local ``layer``; valid until the next step."""
        return self._buffer(conv_state(layer))

    def recurrent_state(self, layer: int) -> StateBuffer | None:
        """Recurrent state [rows, heads, head_dim, state] of the local ``layer``; valid until the next step."""
        return self._buffer(recurrent_state(layer))

    def clear_states(self, rows: Sequence[int] | None = None) -> None:
        """Zero the states of ``rows`` (all by default), so that the next token is their first."""
        chosen = None if rows is None else list(rows)
        buffers = self._owner.states.buffers
        for name in self._names:
            buffers[name].zero_rows(chosen)


@dataclass(frozen=True)
class LayerRoute:
    """Where an absolute layer keeps states: the manager and the layer's local index in it."""

    manager: KVCacheManager | MambaCacheManager
    local_index: int


class HybridCacheManager:
    """All states of ``rows`` batch rows, zeroed, with room for ``tokens`` tokens at first.

    A row's caches hold, and its recurrent states have consumed, exactly ``lengths[row]`` tokens. The caller that runs a
    step adds the new tokens to ``lengths`` when it succeeded.
    """

    def __init__(self, engine: DenseEngine, rows: int, tokens: int = 0) -> None:
        self._engine = engine
        self.states = engine.allocate_states(rows, capacity_for(tokens, engine.max_seq_len))
        self.lengths = [0] * rows
        self.kv = KVCacheManager(self, len(engine.config.kv_layers))
        self.mamba = MambaCacheManager(self, engine.config.recurrent_layers)

    @property
    def rows(self) -> int:
        """The number of batch rows."""
        return self.states.batch

    def routes(self, layer: int) -> tuple[LayerRoute, ...]:
        """Where the absolute ``layer`` keeps its states: keys and values first. Empty for a layer without state."""
        types = self._engine.config.layer_types
        if not 0 <= layer < len(types):
            raise IndexError(f"expected a layer from 0 to {len(types) - 1}, found {layer}")
        both = (self.kv, ATTENTION_LAYER_TYPES), (self.mamba, RECURRENT_LAYER_TYPES)
        return tuple(
            LayerRoute(manager, sum(kind in known for kind in types[:layer]))
            for manager, known in both
            if types[layer] in known
        )

    def clear_states(self, rows: Sequence[int] | None = None) -> None:
        """Forget all tokens of ``rows`` (of every row by default)."""
        chosen = list(range(self.rows) if rows is None else rows)
        self.mamba.clear_states(chosen)
        self.kv.clear_tokens(chosen)
        for row in chosen:
            self.lengths[row] = 0

    def copy_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target``."""
        for buffer in self.states.buffers.values():
            buffer.copy_row(source, target)
        self.lengths[target] = self.lengths[source]

    def take_row(self, other: HybridCacheManager, source: int, target: int) -> None:
        """Copy row ``source`` of ``other`` (same engine) over row ``target`` of this manager."""
        length = other.lengths[source]
        self.reserve(length)
        mine = self.states.buffers
        for name, buffer in other.states.buffers.items():
            mine[name].take_row(target, buffer, source, length)
        self.lengths[target] = length

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in every row's caches; RequestError beyond the engine's max_seq_len."""
        if tokens > self.states.max_seq:
            self.states.reserve(max(tokens, capacity_for(tokens, self._engine.max_seq_len)))

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only ``rows``, in the order given: row ``rows[i]`` becomes row i. The memory of the others is freed."""
        selected = HybridCacheManager(self._engine, len(rows), max(self.lengths[row] for row in rows))
        for target, source in enumerate(rows):
            selected.take_row(self, source, target)
        self.states, self.lengths = selected.states, selected.lengths
