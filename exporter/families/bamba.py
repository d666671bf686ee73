"""Bamba: Mamba2 or attention with partial rotary embedding, each followed by a gated MLP."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, mamba_d_mixer
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# Bamba rotates half of each head unless rope_parameters say otherwise; a factor outside of them was never honoured.
PARTIAL_ROTARY = 0.5
ABSENT_KV_HEADS = 8


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a bamba config."""
    head_dim = head_dim_of(config)
    config.same(PARTIAL_ROTARY, "the family", "partial_rotary_factor")
    rope = rope_from_config(config, head_dim, PARTIAL_ROTARY, partial=True)
    # The original name, which transformers' converter writes and its model does not read.
    config.same(rope.rotary_dim, "the rotary embedding", "attn_rotary_emb")
    mixers = {
        True: BlockConfig("input_layernorm", "self_attn", attention_of(config, head_dim, rope, ABSENT_KV_HEADS)),
        False: BlockConfig("input_layernorm", "mamba", mamba_d_mixer(config)),
    }
    mlp = MlpConfig(config.positive("intermediate_size"), "silu", bias=config.flag("mlp_bias", default=False))
    feed_forward = BlockConfig("pre_ff_layernorm", "feed_forward", mlp)
    config.ignore("z_loss_coefficient")
    layers = [LayerConfig((mixers[is_attention], feed_forward)) for is_attention in _attention_layers(config)]
    return decoder_of(config, "bamba", layers, norm_eps=1e-5, final_norm_source="final_layernorm")


def _attention_layers(config: HfConfig) -> list[bool]:
    count = config.layer_count()
    indices = set(config.array("attn_layer_indices", None) or [])
    for name in ("layers_block_type", "layer_types"):
        if name in config:
            raise config.fail(name, "attn_layer_indices in its place, the one that transformers reads")
    if not all(type(i) is int and 0 <= i < count for i in indices):
        raise config.fail("attn_layer_indices", f"layer indices below num_hidden_layers {count}")
    return [i in indices for i in range(count)]
