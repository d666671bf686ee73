"""GLM-4 0414: norms in front of and behind attention and MLP, neighbours rotated in half of each head."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import decoder_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.glm import ABSENT, attention_and_mlp
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.phi3 import MLP_NAMES

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias",
    "number": "attention_dropout",
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a glm4 config."""
    config.fill(ABSENT)
    attention, mlp = attention_and_mlp(config)
    blocks = (
        BlockConfig("input_layernorm", "self_attn", attention, output_norm_source="post_self_attn_layernorm"),
        BlockConfig("post_attention_layernorm", "mlp", mlp, None, False, "post_mlp_layernorm", names=MLP_NAMES),
    )
    return decoder_of(config, "glm4", (LayerConfig(blocks),) * config.layer_count())
