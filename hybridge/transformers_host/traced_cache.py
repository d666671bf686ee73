"""A cache that torch.export can take as an argument: tensors in the open, updated in place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from hybridge.transformers_host.stateless_layer import stateless_layer

Context = tuple[tuple[str, ...], ...]


class TracedCache:
    """The state of every layer as in ``rows.LayerState``; keys and values have max_cache_len columns."""

    def __init__(self, layers: Sequence[Mapping[str, torch.Tensor]]) -> None:
        self.layers = tuple(layers)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, layer by layer, as the pytree has them."""
        return [tensor for layer in self.layers for tensor in layer.values()]

    def for_model(self, slots: torch.Tensor, fresh: bool) -> Cache:
        """As the model's forward wants it. ``slots`` [q] int64: where new keys go; ``fresh``: nothing is held yet."""
        layers: list[Any] = []
        for layer in self.layers:
            if "keys" in layer:
                layers.append(_SlotLayer(layer["keys"], layer["values"], slots, fresh))
            else:
                layers.append(_recurrent_layer(layer, fresh) if layer else stateless_layer())
        return Cache(layers=layers)


class _SlotLayer(CacheLayerMixin):
    """Attention over slots: all of them, or only the new keys where nothing is held yet."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, fresh: bool) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self._slots, self._fresh = slots, fresh

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The tensors are there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self._slots, key_states)
        self.values.index_copy_(2, self._slots, value_states)
        return (key_states, value_states) if self._fresh else (self.keys, self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]


def _recurrent_layer(layer: Mapping[str, torch.Tensor], fresh: bool) -> LinearAttentionLayer:
    made: Any = LinearAttentionLayer()
    tensor = next(iter(layer.values()))
    made.dtype, made.device = tensor.dtype, tensor.device
    made.has_previous_state = {0: not fresh}
    if "conv" in layer:
        made.conv_states, made.is_conv_states_initialized = {0: layer["conv"]}, {0: True}
        made.conv_kernel_size = {0: layer["conv"].shape[-1]}
    if "recurrent" in layer:
        made.recurrent_states, made.is_recurrent_states_initialized = {0: layer["recurrent"]}, {0: True}
    return made


def _flatten(cache: TracedCache) -> tuple[list[torch.Tensor], Context]:
    return cache.tensors(), tuple(tuple(layer) for layer in cache.layers)


def _flatten_with_keys(cache: TracedCache) -> tuple[list[tuple[_pytree.KeyEntry, torch.Tensor]], Context]:
    tensors, context = _flatten(cache)
    return [(_pytree.SequenceKey(index), tensor) for index, tensor in enumerate(tensors)], context


def _unflatten(tensors: Any, context: Context) -> TracedCache:
    rest = iter(tensors)
    return TracedCache([{name: next(rest) for name in names} for names in context])


_pytree.register_pytree_node(
    TracedCache,
    _flatten,
    _unflatten,
    serialized_type_name="hybridge.transformers_host.TracedCache",
    to_dumpable_context=json.dumps,
    from_dumpable_context=lambda text: tuple(tuple(names) for names in json.loads(text)),
    flatten_with_keys_fn=_flatten_with_keys,
)
