"""States from a plain transformers cache into a backend's rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from hybridge.transformers_host.cache_layers import backend_cache
from hybridge.transformers_host.rows import LayerState, TextRows


def cached_columns(cache: Cache) -> int:
    """Columns that ``cache`` holds; 1 if unknown, as only recurrent layers have a state."""
    for layer in cache.layers:
        if isinstance(layer, CacheLayerMixin):
            return int(layer.get_seq_length())
    return int(any(_has_state(layer) for layer in cache.layers))


def cached_rows(cache: Cache) -> int:
    """Rows of a plain cache that is not empty."""
    return next(len(tensor) for layer in cache.layers for tensor in layer_state(layer, cached_columns(cache)).values())


def fill_rows(rows: TextRows, cache: Cache, tokens: np.ndarray) -> None:
    """Copy the states of a plain ``cache``, whose columns hold ``tokens`` [rows, columns], to ``rows``."""
    columns = cached_columns(cache)
    rows.write_layers([layer_state(layer, columns) for layer in cache.layers], tokens)


def restore_plain_layers(cache: Cache) -> None:
    """Restore the plain layers of ``cache``, filled from the backend's rows, which are then released."""
    owner = backend_cache(cache)
    if owner is None:
        return
    columns = owner.rows.columns.count
    states = [owner.rows.read_layer(index) for index in range(len(cache.layers))]
    cache.layers = owner.plain
    for layer, state in zip(cache.layers, states, strict=True):
        layer.reset()
        if columns:
            _fill_layer(layer, state, columns)
    owner.rows.release()


def layer_state(layer: Any, columns: int) -> LayerState:
    """The state of one plain layer; of keys and values at most ``columns`` columns."""
    state: dict[str, torch.Tensor] = {}
    if isinstance(layer, CacheLayerMixin) and layer.keys is not None and layer.values is not None:
        width = min(columns, layer.keys.shape[2])
        state |= {"keys": layer.keys[:, :, :width], "values": layer.values[:, :, :width]}
    if _has_state(layer):
        state["conv"] = layer.conv_states[0]
        if layer.recurrent_states[0] is not None:
            state["recurrent"] = layer.recurrent_states[0]
    return state


def _has_state(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin) and bool(layer.has_previous_state[0])


def _fill_layer(layer: Any, state: LayerState, columns: int) -> None:
    if "keys" in state:
        layer.update(state["keys"], state["values"])
    if "conv" in state:
        layer.update_conv_state(state["conv"], conv_kernel_size=state["conv"].shape[-1])
    if "recurrent" in state:
        layer.update_recurrent_state(state["recurrent"])
