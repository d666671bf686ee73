"""The whole decoder: embedding, layers of residual blocks, final norm, logits; states in, states out."""

from __future__ import annotations

import torch
from torch import nn

from hybridge.artifact.layer_types import STATELESS_LAYER_TYPES
from hybridge.artifact.names import EMBEDDINGS_OUTPUT, FINAL_NORM_OUTPUT, layer_output
from hybridge.exporter.families.attention_config import (
    AttentionConfig,
    CachedConfig,
    ConvolutionalAttentionConfig,
    LatentAttentionConfig,
    RopeConfig,
)
from hybridge.exporter.families.decoder_config import (
    BlockConfig,
    BodyConfig,
    DecoderConfig,
    LayerConfig,
    ParallelConfig,
)
from hybridge.exporter.families.mamba1_config import HeadedMamba1Config, Mamba1Config
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.parameters import RESIDUAL_SCALE
from hybridge.exporter.families.recurrent_config import (
    GatedDeltaConfig,
    LightningAttentionConfig,
    MambaConfig,
    RecurrentConfig,
    ShortConvConfig,
)
from hybridge.exporter.families.rg_lru import RgLruConfig
from hybridge.exporter.layers.attention import Attention
from hybridge.exporter.layers.convolutional_attention import ConvolutionalAttention
from hybridge.exporter.layers.gated_delta_net import GatedDeltaNet
from hybridge.exporter.layers.latent_attention import LatentAttention
from hybridge.exporter.layers.lightning_attention import LightningAttention
from hybridge.exporter.layers.mamba1 import HeadedMamba1Mixer, Mamba1Mixer
from hybridge.exporter.layers.mamba2 import Mamba2Mixer
from hybridge.exporter.layers.mlp import MLPS
from hybridge.exporter.layers.moe import SparseMoe
from hybridge.exporter.layers.norm import RmsNorm
from hybridge.exporter.layers.packed_step import PackedStep
from hybridge.exporter.layers.parallel import Parallel
from hybridge.exporter.layers.rg_lru import RgLru
from hybridge.exporter.layers.shared_block import SharedBlock
from hybridge.exporter.layers.short_conv import ShortConv
from hybridge.exporter.layers.step import Step
from hybridge.exporter.ops.last_token import last_token
from hybridge.exporter.ops.mark import mark

# A Mamba layer's: of the convolution and of the recurrence.
RECURRENT_STATES = 2


class Block(nn.Module):
    """One residual block: x + multiplier * body(norm(x)), with a norm after the body, as well or instead, where the
    config asks for it.

    The stream stays in float32 where the config asks.
    """

    def __init__(self, block: BlockConfig, config: DecoderConfig) -> None:
        super().__init__()
        self.norm = RmsNorm(config.hidden_size, config.norm_eps, config.norm_offset)
        two = block.output_norm_source is not None
        self.output_norm = RmsNorm(config.hidden_size, config.norm_eps, config.norm_offset) if two else None
        self.body = _body(block.body, config)
        self.shared = None if block.shared is None else SharedBlock(block.shared, config.hidden_size, config.norm_eps)
        self.config = block.body
        self.norm_after, self.factors = block.norm_after, block.residual_factors
        self.multiplier = config.residual_multiplier
        self.residual_scale = None
        if block.residual_scale is not None:
            wide = {name: nn.Parameter(torch.empty(config.hidden_size, dtype=torch.float32)) for name in RESIDUAL_SCALE}
            self.residual_scale = nn.ParameterDict(wide)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """x [..., hidden], the block's states -> the same after the block."""
        narrow = x.to(step.dtype)
        new_caches: list[torch.Tensor] = []
        if self.shared is not None:
            caches, states = states[:-RECURRENT_STATES], states[-RECURRENT_STATES:]
            shared, *new_caches = self.shared(narrow, step, *caches)
            narrow = narrow + shared
        normed = narrow if self.norm_after else self.norm(narrow)
        new_states: list[torch.Tensor] = []
        if isinstance(self.config, CachedConfig | RecurrentConfig | ParallelConfig):
            y, *new_states = self.body(normed, step, *states)
        elif isinstance(self.config, MoeConfig):
            y = self.body(normed, step)
        else:
            y = self.body(normed)
        if self.norm_after:
            y = self.norm(y)
        if self.output_norm is not None:
            y = self.output_norm(y)
        if self.multiplier != 1.0:
            y = y * self.multiplier
        if self.factors is not None:
            x, y = normed.to(x.dtype) * self.factors[0], y * self.factors[1]
        if self.residual_scale is not None:
            scale = self.residual_scale
            x = (x + scale["residual_bias"]) * scale["residual_scale"]
            y = (y.to(x.dtype) + scale["hidden_states_bias"]) * scale["hidden_states_scale"]
        return x + y.to(x.dtype), new_caches + new_states


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, layer: LayerConfig, config: DecoderConfig) -> None:
        super().__init__()
        self.config = layer
        self.blocks = nn.ModuleList(Block(block, config) for block in layer.blocks)

    def forward(
        self, x: torch.Tensor, step: Step | PackedStep, states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """x [..., hidden], the layer's states (possibly none) -> the same after the layer."""
        new_states: list[torch.Tensor] = []
        for block, config in zip(self.blocks, self.config.blocks, strict=True):
            own = [] if config.layer_type in STATELESS_LAYER_TYPES else states
            x, produced = block(x, step, own)
            new_states += produced
        return x, new_states


class Decoder(nn.Module):
    """The traced module. Parameters are created in the default dtype; A, D and dt_bias in float32.

    Forward takes ``states`` in the order of the graph's inputs: per attention layer key and value, or one tensor that
    is both, then per recurrent layer conv and, where it has one, recurrent state. Without ``head`` it ends in the
    hidden states of every token.
    """

    def __init__(self, config: DecoderConfig, all_logits: bool = False, head: bool = True) -> None:
        super().__init__()
        self.config = config
        self.all_logits, self.head = all_logits, head
        # States of one attention layer: as many in all layers.
        self.attention_states = max((body.kv.parts for body in config.attention_bodies), default=0)
        self.dtype = torch.get_default_dtype()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_scale = self.embedding_bias = None
        if config.scaled_embeddings:
            self.embedding_scale = nn.Parameter(torch.empty(config.hidden_size, dtype=torch.float32))
            self.embedding_bias = nn.Parameter(torch.empty(config.hidden_size, dtype=torch.float32))
        self.layers = nn.ModuleList(Layer(layer, config) for layer in config.layers)
        self.final_norm = RmsNorm(config.hidden_size, config.norm_eps, config.norm_offset)
        own_head = head and not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, False) if own_head else None
        self.inv_freqs = nn.ParameterList(
            nn.Parameter(torch.empty(len(rope.inv_freq), dtype=torch.float32)) for rope in config.ropes
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        context_lengths: torch.Tensor,
        past_lengths: torch.Tensor,
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """input_ids [b, t]; lengths [b] int32; states -> logits float32 [b, vocab] (or [b, t, vocab]), new states.

        Without a head the first is the final norm's output, float32 [b, t, hidden].
        """
        step = Step(input_ids, context_lengths, past_lengths, self.dtype, self.frequencies())
        x, new_states = self.run_layers(input_ids, step, states)
        if not self.head:
            return self.final_norm(x.to(self.dtype)).float(), new_states
        return self.logits(x if self.all_logits else last_token(x, context_lengths)), new_states

    def frequencies(self) -> dict[RopeConfig, torch.Tensor]:
        """inv_freq [rotary_dim / 2] of each rotary embedding."""
        return dict(zip(self.config.ropes, self.inv_freqs, strict=True))

    def run_layers(
        self, input_ids: torch.Tensor, step: Step | PackedStep, states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Hidden states [..., hidden] of every token after the last layer, and the new states."""
        return self.run_from(self.embedded(input_ids), step, states)

    def embedded(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings [..., hidden] of ``input_ids``."""
        x = self.embedding(input_ids)
        if self.embedding_scale is not None:
            x = (x.float() + self.embedding_bias) * self.embedding_scale
        return x if self.config.embedding_multiplier == 1.0 else x * self.config.embedding_multiplier

    def run_from(
        self, x: torch.Tensor, step: Step | PackedStep, states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As ``run_layers``, from what the first layer gets."""
        attention_count = self.attention_states * len(self.config.attention_bodies)
        if self.config.residual_in_fp32:
            x = x.float()
        step.embeddings = x
        x = mark(x, EMBEDDINGS_OUTPUT)
        attention, recurrent = list(states[:attention_count]), list(states[attention_count:])
        new_attention: list[torch.Tensor] = []
        new_recurrent: list[torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            config = self.config.layers[index]
            caches = self.attention_states if config.has_attention else 0
            own = [attention.pop(0) for _ in range(caches)]
            own += [recurrent.pop(0) for _ in range(config.recurrent_states)]
            x, produced = layer(x, step, own)
            x = mark(x, layer_output(index), step.router_states)
            new_attention += produced[:caches]
            new_recurrent += produced[caches:]
        return x, new_attention + new_recurrent

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits float32 [..., vocab] of the hidden states ``x`` [..., hidden]."""
        x = mark(self.final_norm(x.to(self.dtype)), FINAL_NORM_OUTPUT)
        weight = self.embedding.weight if self.lm_head is None else self.lm_head.weight
        logits = nn.functional.linear(x, weight).float()
        if self.config.logits_scaling != 1.0:
            logits = logits / self.config.logits_scaling
        cap = self.config.logits_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _body(body: BodyConfig, config: DecoderConfig) -> nn.Module:
    if isinstance(body, AttentionConfig):
        return Attention(body, config.hidden_size, config.norm_eps)
    if isinstance(body, LatentAttentionConfig):
        return LatentAttention(body, config.hidden_size)
    if isinstance(body, ConvolutionalAttentionConfig):
        return ConvolutionalAttention(body, config.hidden_size)
    if isinstance(body, ParallelConfig):
        return Parallel(body, _body(body.attention.body, config), _body(body.mamba.body, config))
    if isinstance(body, MambaConfig):
        return Mamba2Mixer(body, config.hidden_size, config.norm_eps)
    if isinstance(body, HeadedMamba1Config):
        return HeadedMamba1Mixer(body, config.hidden_size)
    if isinstance(body, Mamba1Config):
        return Mamba1Mixer(body, config.hidden_size)
    if isinstance(body, GatedDeltaConfig):
        return GatedDeltaNet(body, config.hidden_size, config.norm_eps)
    if isinstance(body, LightningAttentionConfig):
        return LightningAttention(body, config.hidden_size)
    if isinstance(body, RgLruConfig):
        return RgLru(body, config.hidden_size)
    if isinstance(body, ShortConvConfig):
        return ShortConv(body, config.hidden_size)
    if isinstance(body, MoeConfig):
        return SparseMoe(body, config.hidden_size)
    return MLPS[body.projections](body, config.hidden_size)
