"""InternLM 3: Llama's layout, with biases everywhere or nowhere."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, check_heads, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads max_position_embeddings",
    "int?": "num_key_value_heads head_dim",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias mlp_bias",
    "number": "attention_dropout",
}
ABSENT = {
    "vocab_size": 128512,
    "hidden_size": 4096,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
# The fields of biases, and their names in published configs.
ATTENTION_BIAS, MLP_BIAS = ("attention_bias", "qkv_bias"), ("mlp_bias", "bias")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an internlm3 config."""
    config.fill(ABSENT)
    check_heads(config)
    head_dim = head_dim_of(config)
    rope = rope_from_config(config, head_dim)
    attention = attention_of(config, head_dim, rope, bias_names=ATTENTION_BIAS)
    width, activation = config.positive("intermediate_size"), activation_of(config)
    bias = config.flag(*MLP_BIAS, default=False)
    if bias != attention.bias:
        raise config.fail(config.name_of(*MLP_BIAS), f"{attention.bias} like {config.name_of(*ATTENTION_BIAS)}")
    mlp = MlpConfig(width, activation, bias=bias)
    return decoder_of(config, "internlm3", (layer_of("self_attn", attention, mlp),) * config.layer_count())
