"""Mixtral: Mistral's attention, then experts without a shared one."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import expert_activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings "
    "num_experts_per_tok num_local_experts",
    "int?": "head_dim sliding_window",
    "str": "hidden_act",
    "float": "rms_norm_eps router_aux_loss_coef router_jitter_noise",
    "number": "attention_dropout",
    "bool": "output_router_logits",
    "object?": "rope_parameters",
}
ABSENT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}
EXPERTS = ("num_local_experts", "num_experts")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a mixtral config."""
    config.fill(ABSENT)
    head_dim = head_dim_of(config)
    config.expect("attention_bias", (False,), False)
    rope = rope_from_config(config, head_dim, absent_theta=1000000.0)
    window = config.positive("sliding_window", default=None, null=None)
    attention = attention_of(config, head_dim, rope, sliding_window=window)
    config.ignore("router_jitter_noise", *ROUTER_TRAINING_FIELDS)
    count = config.positive(*EXPERTS, default=8)
    top_k, width = top_k_of(config, count, 2, config.name_of(*EXPERTS)), config.positive("intermediate_size")
    experts = MoeConfig(count, top_k, width, layout="lfm2", router="softmax", **expert_activation_of(config))
    blocks = (
        BlockConfig("input_layernorm", "self_attn", attention),
        BlockConfig("post_attention_layernorm", "block_sparse_moe", experts),
    )
    return decoder_of(config, "mixtral", (LayerConfig(blocks),) * config.layer_count())
