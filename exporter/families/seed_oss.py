"""Seed-OSS: Llama's layout, with a separate bias setting for the output projection."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, check_shares, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads max_position_embeddings pretraining_tp",
    "int?": "num_key_value_heads head_dim",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias attention_out_bias mlp_bias",
    "number": "attention_dropout residual_dropout",
}
ABSENT = {
    "vocab_size": 155136,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
    "attention_bias": True,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a seed_oss config."""
    config.fill(ABSENT)
    head_dim = config.positive("head_dim")
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim))
    attention = replace(attention, output_bias=config.flag("attention_out_bias", default=False))
    check_shares(config, "residual_dropout")
    # Only for tensor parallelism.
    config.ignore("pretraining_tp")
    width, activation = config.positive("intermediate_size"), activation_of(config)
    mlp = MlpConfig(width, activation, bias=config.flag("mlp_bias", default=False))
    return decoder_of(config, "seed_oss", (layer_of("self_attn", attention, mlp),) * config.layer_count())
