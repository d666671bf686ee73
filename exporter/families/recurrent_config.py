"""Mixers with a recurrent state. No torch, no transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import GATED_DELTA_NET, LIGHTNING_ATTENTION, MAMBA, SHORT_CONV
from hybridge.exporter.families.attention_config import ConvolutionalAttentionConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config
from hybridge.exporter.families.rg_lru import RgLruConfig


@dataclass(frozen=True)
class MambaConfig:
    """A Mamba2 mixer. ``norm_groups`` groups of the gated RMS norm; dt is clamped to ``time_step_limit`` (seconds).

    Without ``has_norm`` the gate alone follows the scan. ``norm_eps`` None is the model's epsilon, ``out_bias`` None is
    ``proj_bias``. ``multipliers`` scale the outputs of in_proj: gate, x, B, C and dt.
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
    norm_eps: float | None = None
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
    ``beta_scale``: beta is this times a sigmoid. ``gate_activation``: that of the output gate. ``norm_eps`` None is the
    model's epsilon. ``conv_parts``: the channels of the three convolutions where they differ from those of q, k and v.
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
    """A gated short convolution over ``conv_dim`` channels; ``bias``: whether it and both projections have one."""

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

    The decays depend on ``layer`` (from 0) of ``layers``; they are strongest in the first.
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


def with_ring(body: RecurrentConfig) -> RecurrentLayerConfig:
    """The states of ``body`` with a ring for its recurrent state; without one where it has no such operator."""
    if isinstance(body, MambaConfig):
        return replace(body.recurrent, ring_heads=body.num_groups, ring_decays=1)
    if isinstance(body, LightningAttentionConfig):
        return replace(body.recurrent, ring_heads=body.num_heads, ring_decays=1)
    if isinstance(body, GatedDeltaConfig):
        decays = body.key_size if body.has_channel_decay else 1
        return replace(body.recurrent, ring_heads=body.num_key_heads, ring_decays=decays)
    return body.recurrent


RecurrentConfig = (
    MambaConfig
    | Mamba1Config
    | GatedDeltaConfig
    | ShortConvConfig
    | LightningAttentionConfig
    | RgLruConfig
    | ConvolutionalAttentionConfig
)
