"""IQuest-Coder: Llama's layout."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, check_heads, decoder_of, layer_of
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
    "bool": "attention_bias mlp_bias",
    "number": "attention_dropout",
}
ABSENT = {
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an iquestcoder config."""
    config.fill(ABSENT)
    check_heads(config)
    head_dim = config.positive("head_dim")
    rope = rope_from_config(config, head_dim)
    attention = attention_of(config, head_dim, rope)
    width, activation = config.positive("intermediate_size"), activation_of(config)
    mlp = MlpConfig(width, activation, bias=config.flag("mlp_bias", default=False))
    return decoder_of(config, "iquestcoder", (layer_of("self_attn", attention, mlp),) * config.layer_count())
