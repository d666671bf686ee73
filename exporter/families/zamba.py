"""Zamba: Mamba1 in heads, and in some layers before it an attention block that they share (arXiv 2405.16712)."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS, decoder_of, head_counts
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba1_config import HeadedMamba1Config
from hybridge.exporter.families.mamba_fields import mamba1_of
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.shared_block import SharedBlockConfig
from hybridge.exporter.families.zamba_fields import HYBRID, MAMBA, layer_kinds, layers_with, same_as

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads n_mamba_heads "
    "num_logits_to_keep max_position_embeddings attn_layer_period attn_layer_offset mamba_d_state mamba_d_conv "
    "mamba_expand",
    "int?": "attention_hidden_size attention_head_dim",
    "int or str": "mamba_dt_rank",
    "float": "time_step_min time_step_max time_step_floor rms_norm_eps",
    "bool": "use_mamba_kernels use_associative_scan mamba_conv_bias mamba_proj_bias",
    "str": "hidden_act hidden_mamba_act",
    "[str]?": "layers_block_type",
    "number": "attention_dropout",
}
ABSENT = {
    "vocab_size": 32000,
    "hidden_size": 3712,
    "intermediate_size": 14848,
    "num_hidden_layers": 76,
    "num_attention_heads": 16,
    "n_mamba_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
# Where the mixer keeps the bias that the operator adds.
MIXER_NAMES = (("dt_bias", "dt_proj_bias"),)
# Of training, and of implementations.
UNUSED_FIELDS = (
    *("time_step_min", "time_step_max", "time_step_floor"),
    *("use_mamba_kernels", "use_associative_scan", "num_logits_to_keep"),
)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a zamba config."""
    config.fill(ABSENT)
    config.ignore(*UNUSED_FIELDS)
    tied = config.flag("tie_word_embeddings", default=True)
    kinds = layer_kinds(config, _periodic(config), least=2 if tied else 1)
    layers = layers_with(_shared(config), _mixer(config), kinds, "shared_transf", names=MIXER_NAMES)
    return decoder_of(
        config, "zamba", layers, norm_eps=1e-5, absent_padding=0, absent_tied=True, final_norm_source="final_layernorm"
    )


def _periodic(config: HfConfig) -> list[str]:
    """The kinds of layers without ``layers_block_type``."""
    period = config.positive("attn_layer_period", default=6)
    offset = config.integer("attn_layer_offset", 4)
    rest = [HYBRID if index % period == offset else MAMBA for index in range(config.layer_count() - 3)]
    return [MAMBA, MAMBA, HYBRID, *rest]


def _mixer(config: HfConfig) -> HeadedMamba1Config:
    heads, mixer = config.positive("n_mamba_heads"), mamba1_of(config)
    if mixer.intermediate_size % heads:
        raise config.fail("n_mamba_heads", f"a divisor of mamba_expand x hidden_size {mixer.intermediate_size}")
    config.expect("hidden_mamba_act", CONV_ACTIVATIONS, "silu")
    return HeadedMamba1Config(**vars(mixer), num_heads=heads)


def _shared(config: HfConfig) -> SharedBlockConfig:
    """The shared block, without the place of its weights."""
    width = 2 * config.positive("hidden_size")
    heads, kv_heads = head_counts(config, absent_kv_heads=16)
    if config.raw("attention_hidden_size", None) is not None:
        same_as(config, "attention_hidden_size", width, "hidden_size")
    absent = max(1, width // heads)
    head_dim = config.positive("attention_head_dim", default=absent, null=absent)
    attention = AttentionConfig(heads, kv_heads, head_dim, scale=(head_dim / 2) ** -0.5)
    return SharedBlockConfig(attention, MlpConfig(config.positive("intermediate_size"), activation_of(config)))
