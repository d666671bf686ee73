"""OLMo 2: norms after attention and MLP, and one norm over all query heads and one over all key heads."""

from __future__ import annotations

from collections.abc import Iterable

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig, RopeConfig
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, norm_after_layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_PADDING, ABSENT_EPSILON = 1, 1e-5


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an olmo2 config."""
    head_dim = head_dim_of(config)
    attention = attention_part(config, head_dim, rope_from_config(config, head_dim))
    return olmo_decoder(config, "olmo2", (attention,) * config.layer_count())


def attention_part(config: HfConfig, head_dim: int, rope: RopeConfig | None) -> AttentionConfig:
    """Attention with a norm over all heads of queries and of keys."""
    return attention_of(config, head_dim, rope, qk_norm=True, qk_norm_joint=True)


def olmo_decoder(config: HfConfig, model_type: str, attentions: Iterable[AttentionConfig]) -> DecoderConfig:
    """The decoder with one layer for each of ``attentions``."""
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    layers = [norm_after_layer_of(attention, mlp) for attention in attentions]
    return decoder_of(config, model_type, layers, norm_eps=ABSENT_EPSILON, absent_padding=ABSENT_PADDING)
