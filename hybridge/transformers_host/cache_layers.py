"""The layers that a transformers cache gets while a backend holds its states, and the way back to plain layers.

The cache object stays the caller's own: only its list of layers changes. Operations on the whole cache reach every
layer in turn; the first layer that has a state leads and does them for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from hybridge.artifact.errors import RequestError
from hybridge.artifact.layer_types import ATTENTION, ATTENTION_AND_CONV, ATTENTION_AND_MAMBA, STATELESS_LAYER_TYPES
from hybridge.transformers_host.rows import TextRows
from hybridge.transformers_host.stateless_layer import stateless_layer


class BackendCache:
    """A backend's data for one cache: its rows, the layers the cache had before, and its longest length.

    The rows are released when the cache is gone.
    """

    def __init__(self, rows: TextRows, cache: Cache, layer_types: tuple[str, ...], max_length: int) -> None:
        self.rows, self.max_length, self.plain = rows, max_length, list(cache.layers)
        leader = next(index for index, kind in enumerate(layer_types) if kind not in STATELESS_LAYER_TYPES)
        made: list[Any] = []
        for index, kind in enumerate(layer_types):
            layer = _LAYERS.get(kind, BackendRecurrent)
            made.append(stateless_layer() if kind in STATELESS_LAYER_TYPES else layer(self, index, index == leader))
        cache.layers = made
        cache.layer_class_to_replicate = None
        weakref.finalize(cache, rows.release)


class _BackendLayer:
    """Base of both kinds of layer; operations on the whole cache are no-ops except in the first layer."""

    is_compileable = False
    supports_early_init = False
    is_initialized = True
    is_sliding = False

    def __init__(self, owner: BackendCache, index: int, leads: bool) -> None:
        self.owner, self.index, self.leads = owner, index, leads
        self.record_past = False

    @property
    def batch_size(self) -> int:
        return self.owner.rows.batch

    def get_seq_length(self) -> int:
        return self.owner.rows.columns.count

    def get_max_length(self) -> int:
        return self.owner.max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def activate_past_recording(self) -> None:
        if self.leads:
            self.owner.rows.record()
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise RequestError(
                f"crop: expected the negative number of tokens to remove, found {tokens_to_remove}: pass "
                f"-{tokens_to_remove} or use a transformers version of this year"
            )
        if self.leads:
            self.owner.rows.crop(-tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.leads:
            chosen = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
            self.owner.rows.select(chosen.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.leads:
            self.owner.rows.select([row for row in range(self.batch_size) for _ in range(repeats)])

    def reset(self) -> None:
        if self.leads:
            self.owner.rows.clear()

    def offload(self) -> None:
        """The states stay where the backend has them."""

    def prefetch(self) -> None:
        """The states stay where the backend has them."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RequestError(
            "expected the accelerated model, found another one that writes to its cache: undo the acceleration first, "
            "which gives the cache plain layers again"
        )


class BackendAttention(_BackendLayer, CacheLayerMixin):
    """Keys and values of one layer; reading them copies."""

    is_croppable = True

    @property
    def keys(self) -> torch.Tensor:  # type: ignore[override]
        return self.owner.rows.read_layer(self.index)["keys"]

    @property
    def values(self) -> torch.Tensor:  # type: ignore[override]
        return self.owner.rows.read_layer(self.index)["values"]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._refuse()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()


class BackendRecurrent(_BackendLayer, LinearAttentionCacheLayerMixin):
    """Convolution and recurrent state of one layer; reading them copies."""

    is_croppable = False
    number_of_states = 1

    @property
    def conv_states(self) -> Mapping[int, torch.Tensor]:  # type: ignore[override]
        return {0: self.owner.rows.read_layer(self.index)["conv"]}

    @property
    def recurrent_states(self) -> Mapping[int, torch.Tensor | None]:  # type: ignore[override]
        return {0: self.owner.rows.read_layer(self.index).get("recurrent")}

    @property
    def has_previous_state(self) -> Mapping[int, bool]:  # type: ignore[override]
        return {0: self.get_seq_length() > 0}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> NoReturn:
        self._refuse()

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> NoReturn:
        self._refuse()


class BackendAttentionAndRecurrent(BackendRecurrent, BackendAttention):
    """All states of a layer with both; reading them copies."""


_LAYERS: Mapping[str, type[_BackendLayer]] = {
    ATTENTION: BackendAttention,
    ATTENTION_AND_CONV: BackendAttentionAndRecurrent,
    ATTENTION_AND_MAMBA: BackendAttentionAndRecurrent,
}


def backend_cache(cache: Cache) -> BackendCache | None:
    """The backend's data for ``cache``; None for a cache of transformers itself."""
    return next((layer.owner for layer in cache.layers if isinstance(layer, _BackendLayer)), None)
