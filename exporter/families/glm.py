"""GLM-4: Llama's layout with gate and up projection in one matrix, and neighbours rotated in half of each head."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import attention_of, decoder_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.phi3 import MLP_NAMES
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads max_position_embeddings",
    "int?": "num_key_value_heads head_dim",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias",
    "number?": "attention_dropout",
}
ABSENT = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "pad_token_id": 151329,
    "attention_bias": True,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a glm config."""
    config.fill(ABSENT)
    config.positive("num_key_value_heads")  # transformers cannot build a model of null
    attention, mlp = attention_and_mlp(config)
    blocks = (
        BlockConfig("input_layernorm", "self_attn", attention),
        BlockConfig("post_attention_layernorm", "mlp", mlp, names=MLP_NAMES),
    )
    return decoder_of(config, "glm", (LayerConfig(blocks),) * config.layer_count())


def attention_and_mlp(config: HfConfig) -> tuple[AttentionConfig, MlpConfig]:
    """The parts that all layers share, also in GLM-4 0414."""
    head_dim = config.positive("head_dim")
    rope = rope_from_config(config, head_dim, default_partial=0.5, partial=True, interleaved=True)
    attention = attention_of(config, head_dim, rope, output_bias=False)
    return attention, MlpConfig(config.positive("intermediate_size"), activation_of(config), "fused")
