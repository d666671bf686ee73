"""Qwen3-MoE: Qwen3's attention, then experts without a shared one, or a gated MLP."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.qwen_experts import ExpertDefaults, feed_forward_parts
from hybridge.exporter.families.rope import rope_from_config
from hybridge.exporter.families.sliding_window import switched_window

ABSENT_KV_HEADS, ABSENT_WINDOW = 4, 4096
EXPERTS = ExpertDefaults(
    experts=128,
    top_k=8,
    intermediate_size=768,
    normalized=False,
    shared_size=None,
    names=("num_experts", "num_local_experts"),
)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_moe config."""
    head_dim, window = head_dim_of(config), switched_window(config, ABSENT_WINDOW)
    rope = rope_from_config(config, head_dim)
    attention = attention_of(config, head_dim, rope, ABSENT_KV_HEADS, qk_norm=True, sliding_window=window)
    # A field of Qwen3 that transformers' model reads for no layer here.
    config.ignore("max_window_layers")
    parts = feed_forward_parts(config, config.layer_count(), EXPERTS)
    return decoder_of(config, "qwen3_moe", [layer_of("self_attn", attention, part) for part in parts])
