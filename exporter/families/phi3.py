"""Phi-3 and Phi-4 mini: Llama's layers with one matrix for q, k and v and one for gate and up."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import check_shares, decoder_of, head_counts, head_dim_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT = {"pad_token_id": 32000, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}
# Types of rotary embeddings by name: older configs have other names.
ROPE_TYPES = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
MLP_NAMES = (("input_linear", "gate_up_proj"), ("output_linear", "down_proj"))


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a phi3 config."""
    config.fill(ABSENT)
    heads, kv_heads = head_counts(config)
    head_dim, original = head_dim_of(config), config.positive("original_max_position_embeddings")
    rope = rope_from_config(config, head_dim, partial=True, types=ROPE_TYPES, original=original)
    attention = AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        fused=True,
        sliding_window=config.positive("sliding_window", default=None, null=None),
        rope=rope,
    )
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config), "fused")
    # Fields of published configs that this family's model does not read.
    for name in ("attention_bias", "lm_head_bias", "mlp_bias"):
        config.expect(name, (False,), False)
    for name in ("full_attn_mod", "interpolate_factor"):
        config.expect(name, (1,), 1)
    check_shares(config, "resid_pdrop", "embd_pdrop")
    layer = LayerConfig(
        (
            BlockConfig("input_layernorm", "self_attn", attention),
            BlockConfig("post_attention_layernorm", "mlp", mlp, names=MLP_NAMES),
        )
    )
    return decoder_of(config, "phi3", (layer,) * config.layer_count())
