"""Mixers over a KV cache: attention and latent attention, and their rotary embedding. No torch, no transformers."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.layer_types import ATTENTION, ATTENTION_AND_CONV


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: ``inv_freq`` [rotary_dim / 2] in radians per position.

    ``attention_scaling`` multiplies cos and sin (1 without YaRN). ``longest``: the tokens of the longest sequence that
    ``inv_freq`` is for, None for any; ``beyond``: the frequencies for longer ones, where the model has them.
    ``interleaved``: pairs of neighbours are rotated, not elements of the two halves.
    """

    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_scaling: float = 1.0
    longest: int | None = None
    beyond: tuple[float, ...] | None = None
    interleaved: bool = False


@dataclass(frozen=True)
class AttentionConfig:
    """Grouped-query attention over a KV cache.

    ``bias`` covers q, k and v; ``output_bias`` the output projection. ``qk_norm`` norms every query and key head, with
    ``qk_norm_joint`` all heads together. ``norm_offset`` is added to the weights of these norms. ``output_gate``:
    q_proj holds a gate next to each query head, whose sigmoid multiplies the output. ``head_gate``: g_proj gives one
    gate for each query head instead. ``fused``: qkv_proj holds queries, keys and values, in this order. Keys are
    multiplied by ``key_multiplier`` before the rotary embedding. ``sinks``: each head has a learned score of no
    position, to which a part of its attention goes.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_joint: bool = False
    norm_offset: float = 0.0
    output_gate: bool = False
    head_gate: bool = False
    fused: bool = False
    key_multiplier: float = 1.0
    sinks: bool = False
    sliding_window: int | None = None
    rope: RopeConfig | None = None

    layer_type = ATTENTION

    @property
    def kv(self) -> KVLayerConfig:
        return KVLayerConfig(self.num_kv_heads, self.head_dim, self.sliding_window)


@dataclass(frozen=True)
class LatentAttentionConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a cache that all heads share.

    kv_b_proj expands a latent of ``rank`` channels to ``key_size`` channels of each head's key and ``value_size`` of
    its value; ``shared_size`` channels of the key are the same for all heads, and ``rope`` rotates only these. Queries
    pass through a latent of ``query_rank`` where that is given. ``bias`` is of the projections from and to the hidden
    size, except for q_proj. ``head_gate``: the sigmoid of g_proj multiplies each head's output.
    """

    num_heads: int
    rank: int
    key_size: int
    shared_size: int
    value_size: int
    scale: float
    query_rank: int | None = None
    bias: bool = False
    head_gate: bool = False
    rope: RopeConfig | None = None
    norm_eps: float = 1e-6

    layer_type = ATTENTION
    # As the cache sees it: queries of all heads, one head of keys, which are the values too.
    num_kv_heads = 1
    sliding_window = None

    @property
    def query_size(self) -> int:
        """Channels of one head's query before it is projected to the latent."""
        return self.key_size + self.shared_size

    @property
    def head_dim(self) -> int:
        """Channels of the cache: the latent, then the shared part of the keys."""
        return self.rank + self.shared_size

    @property
    def kv(self) -> KVLayerConfig:
        return KVLayerConfig(self.num_kv_heads, self.head_dim, latent_dim=self.rank)


@dataclass(frozen=True)
class ConvolutionalAttentionConfig:
    """Grouped-query attention whose queries and keys pass through two causal convolutions (arXiv 2510.04476).

    The first has ``depthwise_kernel`` taps of each channel, the second ``grouped_kernel`` taps of all channels of a
    head. Half of the values are those of the token before. ``bias`` is that of all projections.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    depthwise_kernel: int
    grouped_kernel: int
    bias: bool = False
    sliding_window: int | None = None
    rope: RopeConfig | None = None

    layer_type = ATTENTION_AND_CONV

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def width(self) -> int:
        """Channels of all queries and keys, which the convolutions mix."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim

    @property
    def delayed_width(self) -> int:
        """Channels of the values that come from the token before."""
        return self.num_kv_heads * self.head_dim // 2

    @property
    def conv_kernel(self) -> int:
        """Tokens that one token's queries, keys and values depend on."""
        return max(2, self.depthwise_kernel + self.grouped_kernel - 1)

    @property
    def kv(self) -> KVLayerConfig:
        return KVLayerConfig(self.num_kv_heads, self.head_dim, self.sliding_window)

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        """The state of one convolution: queries and keys once for each tap of the second, then the delayed values."""
        return RecurrentLayerConfig(0, 0, 0, self.grouped_kernel * self.width + self.delayed_width, self.conv_kernel)


CachedConfig = AttentionConfig | LatentAttentionConfig | ConvolutionalAttentionConfig
"""Mixers over a KV cache."""
