"""The dense layout: which caches a graph has."""

from __future__ import annotations

from collections.abc import Iterable

from hybridge.artifact import names
from hybridge.artifact.bindings import BATCH, MAX_SEQ, Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.layer_config import KVLayerConfig


def cache_bindings(k: int, layer: KVLayerConfig, dtype: DType) -> tuple[Binding, ...]:
    """The caches of attention layer ``k`` (local index), in graph order."""
    shape = (BATCH, layer.num_kv_heads, MAX_SEQ, layer.head_dim)
    return tuple(Binding(name, dtype, shape, names.present(name)) for name in layer.state_names(k))


def check_caches(bindings: GraphBindings, kv_layers: Iterable[KVLayerConfig], dtype: DType) -> None:
    """ArtifactError unless the caches in ``bindings`` are those of ``kv_layers``, of type ``dtype``."""
    expected = {cache.name: cache for k, layer in enumerate(kv_layers) for cache in cache_bindings(k, layer, dtype)}
    found = {state.name: state for state in bindings.states if state.grows}
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            raise ArtifactError(
                f"config.json: bindings: expected {_described(expected.get(name), name)} as kv_layer_configs and "
                f"kv_cache_dtype say, found {_described(found.get(name), name)}: export the checkpoint again"
            )


def _described(cache: Binding | None, name: str) -> str:
    if cache is None:
        return f"no state {name}"
    return f"the state {name} {list(cache.shape)} {cache.dtype.value} replaced by {cache.replaced_by}"
