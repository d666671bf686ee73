"""OLMo 2: norms behind attention and MLP, and one norm over all query heads and one over all key heads."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import activation_of, attention_of, decoder_of, head_dim_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig, MlpConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_PADDING, ABSENT_EPSILON = 1, 1e-5


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an olmo2 config."""
    head_dim = head_dim_of(config)
    rope = rope_from_config(config, head_dim)
    attention = attention_of(config, head_dim, rope, qk_norm=True, qk_norm_joint=True)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    layer = LayerConfig(
        (
            BlockConfig("post_attention_layernorm", "self_attn", attention, norm_after=True),
            BlockConfig("post_feedforward_layernorm", "mlp", mlp, norm_after=True),
        )
    )
    return decoder_of(
        config, "olmo2", (layer,) * config.layer_count(), norm_eps=ABSENT_EPSILON, absent_padding=ABSENT_PADDING
    )
