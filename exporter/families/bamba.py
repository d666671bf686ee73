"""Bamba: Mamba2 or attention with partial rotary embedding, each followed by a gated MLP."""

from __future__ import annotations

from hybridge.exporter.families.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    LayerConfig,
    MlpConfig,
)
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba_fields import head_counts, head_dim_of, mamba_d_mixer
from hybridge.exporter.families.rope import rope_from_config

# Bamba rotates half of each head unless rope_parameters say otherwise; a factor outside of them was never honoured.
PARTIAL_ROTARY = 0.5
ABSENT_KV_HEADS = 8


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a bamba config."""
    hidden_size = config.positive("hidden_size")
    heads, kv_heads = head_counts(config, ABSENT_KV_HEADS)
    head_dim = head_dim_of(config, hidden_size, heads)
    bias = config.flag("attention_bias", default=False)
    config.same(PARTIAL_ROTARY, "the family", "partial_rotary_factor")
    rope = rope_from_config(config, head_dim, PARTIAL_ROTARY, partial=True)
    # The original name, which transformers' converter writes and its model does not read.
    config.same(rope.rotary_dim, "the rotary embedding", "attn_rotary_emb")
    attention = AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        bias=bias,
        output_bias=bias,
        rope=rope,
    )
    mamba = mamba_d_mixer(config, hidden_size)
    mlp = MlpConfig(config.positive("intermediate_size"), "silu", bias=config.flag("mlp_bias", default=False))
    config.ignore("z_loss_coefficient")
    feed_forward = BlockConfig("pre_ff_layernorm", "feed_forward", mlp)
    kinds = _attention_layers(config)
    layers = tuple(
        LayerConfig(
            (
                BlockConfig("input_layernorm", "self_attn", attention)
                if is_attention
                else BlockConfig("input_layernorm", "mamba", mamba),
                feed_forward,
            )
        )
        for is_attention in kinds
    )
    return DecoderConfig(
        model_type="bamba",
        vocab_size=config.vocabulary(),
        hidden_size=hidden_size,
        layers=layers,
        norm_eps=config.scalar("rms_norm_eps", default=1e-5, positive=True),
        embedding_sources=("embed_tokens.weight",),
        final_norm_source="final_layernorm",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
    )


def _attention_layers(config: HfConfig) -> list[bool]:
    count = config.layer_count()
    indices = set(config.array("attn_layer_indices", None) or [])
    for name in ("layers_block_type", "layer_types"):
        if name in config:
            raise config.fail(name, "attn_layer_indices in its place, the one that transformers reads")
    if not all(type(i) is int and 0 <= i < count for i in indices):
        raise config.fail("attn_layer_indices", f"layer indices below num_hidden_layers {count}")
    return [i in indices for i in range(count)]
