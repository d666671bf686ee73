"""The normalised description of a decoder: what every family's config is translated into. No torch, no transformers.

A decoder layer is a sequence of residual blocks, each ``x + residual_multiplier * body(norm(x))``. ``source`` names
are the checkpoint's tensor name parts, so that graph initializers carry the checkpoint's own names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridge.artifact.layer_types import ATTENTION_AND_MAMBA, STATELESS_LAYER_TYPES
from hybridge.exporter.families.attention_config import AttentionConfig, CachedConfig, RopeConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.recurrent_config import RecurrentConfig
from hybridge.exporter.families.shared_block import SharedBlockConfig


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
    ``a * norm(x) + b * body(norm(x))``; with ``residual_scale``, the name of four vectors, it is
    ``(x + bx) * sx + (body(norm(x)) + by) * sy``. With a ``shared`` block it is
    ``x + body(norm(x + linear(shared(x))))``, where ``linear`` is a matrix of the layer.
    """

    norm_source: str
    source: str
    body: BodyConfig
    norm_alias: str | None = None
    norm_after: bool = False
    output_norm_source: str | None = None
    residual_factors: tuple[float, float] | None = None
    residual_scale: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    source_alias: str | None = None
    shared: SharedBlockConfig | None = None

    @property
    def layer_type(self) -> str:
        """That of the body, and of attention where a shared block comes before it."""
        return self.body.layer_type if self.shared is None else ATTENTION_AND_MAMBA

    @property
    def bodies(self) -> tuple[BodyConfig, ...]:
        """The body, or those of its branches; before it the attention of a shared block."""
        if isinstance(self.body, ParallelConfig):
            return tuple(branch.body for branch in self.body.branches)
        return (self.body,) if self.shared is None else (self.shared.attention, self.body)


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: one to two residual blocks, at most one of which holds a state."""

    blocks: tuple[BlockConfig, ...]

    @property
    def kind(self) -> LayerConfig:
        """The layer without the place of shared weights: layers of one kind have the same graph."""
        return LayerConfig(tuple(b if b.shared is None else replace(b, shared=b.shared.kind) for b in self.blocks))

    @property
    def layer_type(self) -> str:
        """The stateful mixer of the layer; where it holds no state, "moe" if it has experts, else "mlp"."""
        kinds = [block.layer_type for block in self.blocks]
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
    ``scaled_embeddings``: the checkpoint has two vectors that are added to and multiply the embeddings.
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
    scaled_embeddings: bool = False
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
