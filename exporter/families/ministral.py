"""Ministral: Llama's layout, every layer in a sliding window."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings",
    "int?": "head_dim sliding_window",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "number": "attention_dropout",
    "[str]?": "layer_types",
}
ABSENT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a ministral config."""
    config.fill(ABSENT)
    # transformers cannot run a model without a head size or a window.
    head_dim, window, count = config.positive("head_dim"), config.positive("sliding_window"), config.layer_count()
    config.expect("attention_bias", (False,), False)
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim))
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    windows = layer_windows(config, count, [SLIDING] * count, window)
    layers = [layer_of("self_attn", replace(attention, sliding_window=each), mlp) for each in windows]
    return decoder_of(config, "ministral", layers)
