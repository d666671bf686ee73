"""ERNIE 4.5: Llama's layout, with a rotary embedding of neighbours, and biases everywhere or nowhere."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads max_position_embeddings",
    "int?": "num_key_value_heads head_dim",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool?": "use_cache use_bias",
}
ABSENT = {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-05,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an ernie4_5 config."""
    config.fill(ABSENT)
    head_dim, bias = head_dim_of(config), config.flag("use_bias", default=False, null=False)
    rope = rope_from_config(config, head_dim, absent_theta=500000.0, interleaved=True)
    config.expect("attention_bias", (False,), False)
    attention = replace(attention_of(config, head_dim, rope), bias=bias, output_bias=bias)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config), bias=bias)
    return decoder_of(config, "ernie4_5", (layer_of("self_attn", attention, mlp),) * config.layer_count())
