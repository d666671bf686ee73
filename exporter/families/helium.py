"""Helium: Llama's layout with neighbours rotated; its heads fill the hidden size."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings",
    "str": "hidden_act",
    "number": "attention_dropout",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias mlp_bias",
}
ABSENT = {
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-08,
    "pad_token_id": 3,
    "tie_word_embeddings": False,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a helium config."""
    config.fill(ABSENT)
    head_dim = config.positive("head_dim")
    if head_dim * config.positive("num_attention_heads") != config.positive("hidden_size"):
        raise config.fail("head_dim", "hidden_size / num_attention_heads")
    rope = rope_from_config(config, head_dim, absent_theta=100000.0, interleaved=True)
    attention = attention_of(config, head_dim, rope, output_bias=False)
    width, activation = config.positive("intermediate_size"), activation_of(config)
    mlp = MlpConfig(width, activation, bias=config.flag("mlp_bias", default=False))
    return decoder_of(config, "helium", (layer_of("self_attn", attention, mlp),) * config.layer_count())
