"""The normalised description of a decoder: what every family's config is translated into. No torch, no transformers.

A decoder layer is a sequence of residual blocks, each ``x + residual_multiplier * body(norm(x))``. ``source`` names
are the checkpoint's tensor name parts, so that graph initializers carry the checkpoint's own names.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.config import (
    ATTENTION,
    ATTENTION_AND_MAMBA,
    GATED_DELTA_NET,
    LIGHTNING_ATTENTION,
    MAMBA,
    SHORT_CONV,
    STATELESS_LAYER_TYPES,
)
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: ``inv_freq`` [rotary_dim / 2] in radians per position.

    ``attention_scaling`` multiplies cos and sin (1 without YaRN). ``longest``: the tokens of the longest sequence that
    ``inv_freq`` is for, None for any; ``beyond``: the frequencies for longer ones, where the model has them.
    """

    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_scaling: float = 1.0
    longest: int | None = None
    beyond: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AttentionConfig:
    """Grouped-query attention over a KV cache.

    ``bias`` covers q, k and v; ``output_bias`` the output projection. ``qk_norm`` norms every query and key head, with
    ``qk_norm_joint`` all heads together. ``norm_offset`` is added to the weights of these norms. ``output_gate``:
    q_proj holds a gate next to each query head, whose sigmoid multiplies the output. ``head_gate``: g_proj gives one
    gate for each query head instead. ``fused``: qkv_proj holds queries, keys and values, in this order. Keys are
    multiplied by ``key_multiplier`` before the rotary embedding.
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
        return KVLayerConfig(self.num_kv_heads, self.head_dim)


CachedConfig = AttentionConfig | LatentAttentionConfig
"""Mixers over a KV cache."""


@dataclass(frozen=True)
class MambaConfig:
    """A Mamba2 mixer. ``norm_groups`` groups of the gated RMS norm; dt is clamped to ``time_step_limit`` (seconds).

    Without ``has_norm`` the gate alone follows the scan. ``out_bias`` None is ``proj_bias``. ``multipliers`` of what
    in_proj gives: gate, x, B, C and dt.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int
    chunk_size: int
    norm_groups: int
    proj_bias: bool = False
    conv_bias: bool = True
    activation: str = "silu"
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    norm_before_gate: bool = False
    has_norm: bool = True
    out_bias: bool | None = None
    multipliers: tuple[float, ...] | None = None

    layer_type = MAMBA

    @property
    def projection_sizes(self) -> tuple[int, ...]:
        """Rows of in_proj: gate, x, B, C and dt."""
        groups = self.num_groups * self.state_size
        return (self.intermediate_size, self.intermediate_size, groups, groups, self.num_heads)

    @property
    def intermediate_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        return self.intermediate_size + 2 * self.num_groups * self.state_size

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(self.num_heads, self.head_dim, self.state_size, self.conv_dim, self.conv_kernel)


@dataclass(frozen=True)
class GatedDeltaConfig:
    """A gated delta net mixer: a convolution over q, k and v, the gated delta rule, a gated norm of each head.

    ``projections`` names the layout in the checkpoint: "fused" (in_proj_qkvz and in_proj_ba, by key head), "split"
    (in_proj_qkv, in_proj_z, in_proj_b, in_proj_a), "separate" (q_proj, k_proj, v_proj, g_proj, b_proj, a_proj, and
    one convolution each for q, k and v) or, with one decay for each key channel (Kimi Delta Attention, arXiv
    2510.26692), "channels" (f_proj instead of a_proj) and "low_rank" (f_proj and g_proj as two matrices each, of rank
    value_size). ``decay_bound``: the log of the decay is this times a sigmoid. ``decay_shape`` is that of A_log.
    ``beta_scale`` multiplies the sigmoid that beta is. ``gate_activation`` is of the output's gate. ``norm_eps`` None
    is the model's epsilon. ``conv_parts`` are the channels of the three convolutions where they are not those of q, k
    and v.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    conv_kernel: int
    projections: str
    activation: str = "silu"
    beta_scale: float = 1.0
    decay_bound: float | None = None
    decay_shape: tuple[int, ...] | None = None
    gate_activation: str = "silu"
    norm_eps: float | None = None
    conv_parts: tuple[int, ...] | None = None

    layer_type = GATED_DELTA_NET

    @property
    def has_channel_decay(self) -> bool:
        return self.projections in ("channels", "low_rank")

    @property
    def has_separate_convolutions(self) -> bool:
        return self.has_channel_decay or self.projections == "separate"

    @property
    def decay_dim(self) -> int:
        """Decays of one token: one for each value head, or for each key channel of each value head."""
        return self.num_value_heads * (self.key_size if self.has_channel_decay else 1)

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_size

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_size

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(
            self.num_value_heads, self.key_size, self.value_size, self.conv_dim, self.conv_kernel
        )


@dataclass(frozen=True)
class ShortConvConfig:
    """A gated short convolution over ``conv_dim`` channels; ``bias`` is of it and of both projections."""

    conv_dim: int
    conv_kernel: int
    bias: bool = False
    activation: str = "none"

    layer_type = SHORT_CONV

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(0, 0, 0, self.conv_dim, self.conv_kernel)


@dataclass(frozen=True)
class LightningAttentionConfig:
    """Linear attention whose decays are constants (MiniMax-01, arXiv 2501.08313).

    ``layer`` of ``layers``, counted from 0, tells the decays: in front they are the strongest.
    """

    num_heads: int
    head_dim: int
    layer: int
    layers: int
    chunk_size: int = 256
    norm_eps: float = 1e-6

    layer_type = LIGHTNING_ATTENTION

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def log_decays(self) -> tuple[float, ...]:
        """Log decay of each head per token: ALiBi's slopes, which fall to almost 0 in the last layer."""
        share = 1 - self.layer / (self.layers - 1 + 1e-5) + 1e-5
        return tuple(-share * 2.0 ** (-8.0 * head / self.num_heads) for head in range(1, self.num_heads + 1))

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(self.num_heads, self.head_dim, self.head_dim, 0, 0)


@dataclass(frozen=True)
class MlpConfig:
    """A feed-forward block.

    ``projections`` names the layout in the checkpoint: "gated" (gate_proj, up_proj, down_proj), "plain"
    (up_proj, down_proj) or "fused" (input_linear holding gate and up, output_linear). A gated one multiplies what
    gate_proj gives by ``gate_multiplier``, and what down_proj gives by ``down_multiplier``.
    """

    intermediate_size: int
    activation: str
    projections: str = "gated"
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0

    layer_type = "mlp"


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts, of which a router chooses ``top_k`` for each token, and a ``shared`` MLP that all pass.

    ``layout`` names the tensors (moe_parameters.MOE_NAMES). Experts have the activation and, where ``gated``, the form
    of a gated MLP. ``router`` is "softmax" (scores over all experts, ``normalized`` over the chosen ones),
    "top_k_softmax" (over the chosen ones alone) or "sigmoid" (biased for the choice, which ``top_groups`` of
    ``groups`` groups limit, without ``correction_bias`` by score alone; then ``normalized``, divided by their sum +
    ``sum_epsilon``, and multiplied by ``scaling``). ``shared_gate``: a sigmoid multiplies
    what the shared MLP gives. ``latent_size`` is the width between two projections that the experts work in.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    activation: str
    layout: str
    router: str
    gated: bool = True
    normalized: bool = True
    scaling: float = 1.0
    correction_bias: bool = True
    sum_epsilon: float = 1e-20
    groups: int = 1
    top_groups: int = 1
    shared: MlpConfig | None = None
    shared_gate: bool = False
    latent_size: int | None = None
    latent_bias: bool = False

    layer_type = "moe"

    @property
    def up_size(self) -> int:
        """Rows of an expert's first matrix."""
        return self.intermediate_size * (2 if self.gated else 1)


RecurrentConfig = MambaConfig | Mamba1Config | GatedDeltaConfig | ShortConvConfig | LightningAttentionConfig


@dataclass(frozen=True)
class BranchConfig:
    """One of several mixers with the same input, its name in the checkpoint, and multipliers of input and output."""

    source: str
    body: AttentionConfig | RecurrentConfig
    input_multiplier: float = 1.0
    output_multiplier: float = 1.0


@dataclass(frozen=True)
class ParallelConfig:
    """Attention and Mamba2 side by side, whose outputs are added."""

    attention: BranchConfig
    mamba: BranchConfig

    layer_type = ATTENTION_AND_MAMBA

    @property
    def branches(self) -> tuple[BranchConfig, ...]:
        return (self.attention, self.mamba)


BodyConfig = CachedConfig | RecurrentConfig | ParallelConfig | MlpConfig | MoeConfig


@dataclass(frozen=True)
class BlockConfig:
    """One residual block: the checkpoint's names of its norm and of its body, and the body's configuration.

    ``norm_alias`` and ``source_alias`` are other names that checkpoints use for the norm and the body. ``names``: of
    parts of the body, ours and the checkpoint's, where they differ. With ``norm_after`` the block is
    ``x + residual_multiplier * norm(body(x))``; with ``output_norm_source``, the name of a second norm,
    ``x + residual_multiplier * output_norm(body(norm(x)))``. With ``residual_factors`` (a, b) it is
    ``a * norm(x) + b * body(norm(x))``.
    """

    norm_source: str
    source: str
    body: BodyConfig
    norm_alias: str | None = None
    norm_after: bool = False
    output_norm_source: str | None = None
    residual_factors: tuple[float, float] | None = None
    names: tuple[tuple[str, str], ...] = ()
    source_alias: str | None = None

    @property
    def bodies(self) -> tuple[BodyConfig, ...]:
        """The body, or those of its branches."""
        if isinstance(self.body, ParallelConfig):
            return tuple(branch.body for branch in self.body.branches)
        return (self.body,)


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: one to two residual blocks, at most one of which holds a state."""

    blocks: tuple[BlockConfig, ...]

    @property
    def layer_type(self) -> str:
        """The stateful mixer of the layer; where it holds no state, "moe" if it has experts, else "mlp"."""
        kinds = [block.body.layer_type for block in self.blocks]
        stateless = "moe" if "moe" in kinds else "mlp"
        return next((kind for kind in kinds if kind not in STATELESS_LAYER_TYPES), stateless)

    @property
    def recurrent_states(self) -> int:
        """How many states of convolutions and recurrences the layer holds."""
        return sum(len(body.recurrent.state_names(0)) for body in self.bodies if isinstance(body, RecurrentConfig))

    @property
    def has_attention(self) -> bool:
        return any(isinstance(body, CachedConfig) for body in self.bodies)

    @property
    def bodies(self) -> tuple[BodyConfig, ...]:
        """The bodies of all blocks and branches."""
        return tuple(body for block in self.blocks for body in block.bodies)


@dataclass(frozen=True)
class DecoderConfig:
    """A whole decoder-only language model.

    ``embedding_sources`` lists the names that checkpoints use for the embedding; ``final_norm_source`` the last
    norm. Logits are divided by ``logits_scaling``, then with a ``logits_softcap`` c they are c * tanh(logits / c).
    ``ignored_sources`` are prefixes of tensors that the decoder
    does not need (multi-token prediction heads). ``own_head_wins``: a head that the checkpoint stores is used even
    where ``tie_word_embeddings`` says that there is none. ``norm_offset`` is added to the weights of the layer norms.
    ``notes`` are remarks for the user.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    embedding_sources: tuple[str, ...]
    final_norm_source: str
    tie_word_embeddings: bool
    max_position_embeddings: int | None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    logits_softcap: float | None = None
    residual_in_fp32: bool = False
    norm_offset: float = 0.0
    ignored_sources: tuple[str, ...] = ()
    own_head_wins: bool = False
    notes: tuple[str, ...] = ()

    @property
    def layer_types(self) -> tuple[str, ...]:
        return tuple(layer.layer_type for layer in self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The distinct rotary embeddings, in the order of their first layers."""
        return tuple(dict.fromkeys(body.rope for body in self.attention_bodies if body.rope is not None))

    @property
    def attention_bodies(self) -> tuple[CachedConfig, ...]:
        """The attention layers in order; the position is the local layer index."""
        return tuple(body for layer in self.layers for body in layer.bodies if isinstance(body, CachedConfig))

    @property
    def recurrent_bodies(self) -> tuple[RecurrentConfig, ...]:
        """The layers with a recurrent state in order; the position is the local layer index."""
        return tuple(body for layer in self.layers for body in layer.bodies if isinstance(body, RecurrentConfig))
