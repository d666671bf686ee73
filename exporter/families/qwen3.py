"""Qwen3: Llama's layout with a norm on every query and key head, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    LayerConfig,
    MlpConfig,
)
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba_fields import activation_of, head_counts
from hybridge.exporter.families.rope import rope_from_config

ABSENT_KV_HEADS, ABSENT_HEAD_DIM, ABSENT_WINDOW = 32, 128, 4096
LAYER_KINDS = ("full_attention", "sliding_attention")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3 config."""
    hidden_size = config.positive("hidden_size")
    heads, kv_heads = head_counts(config, ABSENT_KV_HEADS)
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    full = AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        bias=(bias := config.flag("attention_bias", default=False)),
        output_bias=bias,
        qk_norm=True,
        rope=rope_from_config(config, head_dim),
    )
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    windows = _windows(config)
    layers = tuple(
        LayerConfig(
            (
                BlockConfig("input_layernorm", "self_attn", replace(full, sliding_window=window)),
                BlockConfig("post_attention_layernorm", "mlp", mlp),
            )
        )
        for window in windows
    )
    return DecoderConfig(
        model_type="qwen3",
        vocab_size=config.vocabulary(),
        hidden_size=hidden_size,
        layers=layers,
        norm_eps=config.scalar("rms_norm_eps", default=1e-6, positive=True),
        embedding_sources=("embed_tokens.weight",),
        final_norm_source="norm",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
    )


def _windows(config: HfConfig) -> list[int | None]:
    """The sliding window of each layer, None for full attention."""
    count = config.layer_count()
    used = config.flag("use_sliding_window", default=False)
    # The field is checked even where use_sliding_window switches it off.
    window = config.positive("sliding_window", default=ABSENT_WINDOW, null=None)
    window = window if used else None
    first = config.integer("max_window_layers", 28)
    kinds = config.array("layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window and i >= first else "full_attention" for i in range(count)]
    if len(kinds) != count or not all(kind in LAYER_KINDS for kind in kinds):
        raise config.fail(
            "layer_types", f"a list of num_hidden_layers {count} entries, full_attention or sliding_attention"
        )
    if window is None and "sliding_attention" in kinds:
        raise config.fail(
            "sliding_window", "a window with use_sliding_window, because layer_types has sliding_attention"
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]
