"""Granite: Llama's layout with multipliers of embeddings, scores, residual blocks and logits."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads max_position_embeddings",
    "int?": "num_key_value_heads",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias mlp_bias",
    "number": "attention_dropout embedding_multiplier logits_scaling residual_multiplier attention_multiplier",
}
ABSENT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a granite config."""
    config.fill(ABSENT)
    head_dim = head_dim_of(config)
    scale = config.scalar("attention_multiplier", default=1.0, positive=True)
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim), scale=scale)
    width, activation = config.positive("intermediate_size"), activation_of(config)
    mlp = MlpConfig(width, activation, bias=config.flag("mlp_bias", default=False))
    return decoder_of(
        config,
        "granite",
        (layer_of("self_attn", attention, mlp),) * config.layer_count(),
        embedding_multiplier=config.scalar("embedding_multiplier", default=1.0),
        residual_multiplier=config.scalar("residual_multiplier", default=1.0),
        logits_scaling=config.scalar("logits_scaling", default=1.0, positive=True),
    )
