"""CWM: Llama's layout, with a sliding window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import FULL, attention_of, check_heads, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import fill_rope, rope_from_config
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "bos_token_id intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings pretraining_tp sliding_window",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "number": "attention_dropout",
    "bool": "mlp_bias",
    "[str]?": "layer_types",
}
ABSENT = {
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-05,
    "sliding_window": 8192,
}
ABSENT_ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "original_max_position_embeddings": 8192}
ABSENT_ROPE |= {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a cwm config."""
    config.fill(ABSENT)
    fill_rope(config, ABSENT_ROPE)
    check_heads(config)
    config.ignore("pretraining_tp")  # of tensor parallelism
    head_dim, count = config.positive("head_dim"), config.layer_count()
    config.expect("attention_bias", (False,), False)
    base = attention_of(config, head_dim, rope_from_config(config, head_dim, absent_theta=1e6))
    width, bias = config.positive("intermediate_size"), config.flag("mlp_bias", default=False)
    mlp = MlpConfig(width, activation_of(config), bias=bias)
    kinds = [SLIDING if index % 4 else FULL for index in range(count)]
    windows = layer_windows(config, count, kinds, config.integer("sliding_window", minimum=0) or None)
    layers = [layer_of("self_attn", replace(base, sliding_window=window), mlp) for window in windows]
    return decoder_of(config, "cwm", layers)
