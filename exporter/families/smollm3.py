"""SmolLM3: Llama's layout, in which some layers have no rotary embedding, and an optional sliding window there."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import FULL, attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows, switched_window

ABSENT_KV_HEADS, ABSENT_PADDING, ABSENT_INTERVAL, ABSENT_THETA = 4, 128004, 4, 2e6


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a smollm3 config."""
    head_dim, rotated = head_dim_of(config), _rotated(config)
    rope = rope_from_config(config, head_dim, absent_theta=ABSENT_THETA)
    base = attention_of(config, head_dim, rope, ABSENT_KV_HEADS)
    mlp = MlpConfig(
        config.positive("intermediate_size"), activation_of(config), bias=config.flag("mlp_bias", default=False)
    )
    window = switched_window(config)
    kinds = [FULL if has_rope or window is None else SLIDING for has_rope in rotated]
    windows = layer_windows(config, len(rotated), kinds, window)
    attentions = [
        replace(base, rope=rope if has_rope else None, sliding_window=window)
        for has_rope, window in zip(rotated, windows, strict=True)
    ]
    layers = [layer_of("self_attn", attention, mlp) for attention in attentions]
    return decoder_of(config, "smollm3", layers, absent_padding=ABSENT_PADDING, absent_tied=True)


def _rotated(config: HfConfig) -> list[bool]:
    """Whether each layer has a rotary embedding: not where ``no_rope_layers`` has a 0."""
    count = config.layer_count()
    interval = config.positive("no_rope_layer_interval", default=ABSENT_INTERVAL)
    given = config.array("no_rope_layers", None)
    if given is None:
        return [(index + 1) % interval != 0 for index in range(count)]
    if len(given) < count:
        raise config.fail("no_rope_layers", f"a list of at least num_hidden_layers {count} entries")
    return [bool(value) for value in given[:count]]
