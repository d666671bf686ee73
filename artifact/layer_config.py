"""The states of one layer, as declared in config.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KVLayerConfig:
    """The KV cache of one attention layer; ``sliding_window`` counts tokens, None is full attention."""

    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None


@dataclass(frozen=True)
class RecurrentLayerConfig:
    """The states of one recurrent layer: conv [conv_dim, conv_kernel], recurrent [num_heads, head_dim, state_size]."""

    num_heads: int
    head_dim: int
    state_size: int
    conv_dim: int
    conv_kernel: int
