"""Qwen3: Llama's layout with a norm on every query and key head, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config
from hybridge.exporter.families.sliding_window import upper_windows

ABSENT_KV_HEADS, ABSENT_HEAD_DIM, ABSENT_WINDOW = 32, 128, 4096


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3 config."""
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    full = attention_of(config, head_dim, rope_from_config(config, head_dim), ABSENT_KV_HEADS, qk_norm=True)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    windows = upper_windows(config, ABSENT_WINDOW)
    return decoder_of(
        config, "qwen3", [layer_of("self_attn", replace(full, sliding_window=window), mlp) for window in windows]
    )
