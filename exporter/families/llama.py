"""Llama: attention with rotary embedding and a gated MLP in every layer."""

from __future__ import annotations

from hybridge.exporter.families.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    LayerConfig,
    MlpConfig,
)
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba_fields import activation_of, head_counts, head_dim_of
from hybridge.exporter.families.rope import rope_from_config


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a llama config."""
    hidden_size = config.positive("hidden_size")
    heads, kv_heads = head_counts(config)
    if hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    head_dim = head_dim_of(config, hidden_size, heads)
    bias = config.flag("attention_bias", default=False)
    attention = AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        bias=bias,
        output_bias=bias,
        rope=rope_from_config(config, head_dim),
    )
    activation = activation_of(config)
    mlp = MlpConfig(config.positive("intermediate_size"), activation, bias=config.flag("mlp_bias", default=False))
    # The original checkpoints' order of rotated elements, which transformers has for none.
    config.expect("rope_interleaved", (False,), False)
    # pretraining_tp only chooses how transformers once sliced the same matrix products.
    config.ignore("pretraining_tp", "is_llama_config")
    layer = LayerConfig(
        (
            BlockConfig("input_layernorm", "self_attn", attention),
            BlockConfig("post_attention_layernorm", "mlp", mlp),
        )
    )
    return DecoderConfig(
        model_type="llama",
        vocab_size=config.vocabulary(),
        hidden_size=hidden_size,
        layers=(layer,) * config.layer_count(),
        norm_eps=config.scalar("rms_norm_eps", default=1e-6, positive=True),
        embedding_sources=("embed_tokens.weight",),
        final_norm_source="norm",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
    )
