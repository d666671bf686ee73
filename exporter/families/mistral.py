"""Mistral: Llama's layout without biases, and one sliding window for all layers or none."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_KV_HEADS, ABSENT_WINDOW = 8, 4096


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a mistral config."""
    head_dim = head_dim_of(config)
    window = config.positive("sliding_window", default=ABSENT_WINDOW, null=None)
    # Fields of Llama that this family's model does not read.
    config.expect("attention_bias", (False,), False)
    config.expect("mlp_bias", (False,), False)
    rope = rope_from_config(config, head_dim)
    attention = attention_of(config, head_dim, rope, ABSENT_KV_HEADS, sliding_window=window)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    return decoder_of(config, "mistral", (layer_of("self_attn", attention, mlp),) * config.layer_count())
