"""Gemma: Llama's layout with norms that add one to their weights, and scaled embeddings."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings",
    "str": "hidden_act",
    "float": "rms_norm_eps",
    "object?": "rope_parameters",
    "bool": "attention_bias",
    "bool?": "use_bidirectional_attention",
    "number": "attention_dropout",
}
TANH = "gelu_pytorch_tanh"
ABSENT = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": TANH,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a gemma config."""
    config.fill(ABSENT)
    config.expect("use_bidirectional_attention", (False, None), None)
    # A second name of hidden_act, which transformers does not read.
    config.ignore("hidden_activation")
    head_dim, hidden_size = config.positive("head_dim"), config.positive("hidden_size")
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim))
    # The first configs say gelu, and mean its approximation.
    activation = TANH if config.raw("hidden_act") == "gelu" else activation_of(config)
    mlp = MlpConfig(config.positive("intermediate_size"), activation)
    layers = (layer_of("self_attn", attention, mlp),) * config.layer_count()
    return decoder_of(config, "gemma", layers, embedding_multiplier=hidden_size**0.5, norm_offset=1.0)
