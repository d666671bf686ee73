"""EXAONE 4: norms behind attention and MLP, and no rotary embedding in the layers without a sliding window."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import FULL, attention_of, decoder_of, head_dim_of, norm_after_layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "number": "attention_dropout",
    "int?": "sliding_window",
    "int or str?": "sliding_window_pattern",
    "[str]?": "layer_types",
}
ABSENT = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an exaone4 config."""
    config.fill(ABSENT)
    head_dim, count = head_dim_of(config), config.layer_count()
    rope, window = rope_from_config(config, head_dim), config.positive("sliding_window", null=None)
    config.expect("attention_bias", (False,), False)
    base = attention_of(config, head_dim, rope, qk_norm=True)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    kinds: list[str] = []
    if config.raw("layer_types", None) is None:
        every = config.positive("sliding_window_pattern")
        kinds = [SLIDING if (index + 1) % every else FULL for index in range(count)]
    config.ignore("sliding_window_pattern")
    windows = layer_windows(config, count, kinds, window)
    attentions = [
        replace(base, sliding_window=own, rope=None if window is not None and own is None else rope) for own in windows
    ]
    return decoder_of(config, "exaone4", [norm_after_layer_of(attention, mlp) for attention in attentions])
