"""Llama: attention with rotary embedding and a gated MLP in every layer."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a llama config."""
    hidden_size, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    if hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    head_dim = head_dim_of(config)
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim))
    activation = activation_of(config)
    mlp = MlpConfig(config.positive("intermediate_size"), activation, bias=config.flag("mlp_bias", default=False))
    # The original checkpoints' order of rotated elements, which transformers has for none.
    config.expect("rope_interleaved", (False,), False)
    # pretraining_tp only chooses how transformers once sliced the same matrix products.
    config.ignore("pretraining_tp", "is_llama_config")
    return decoder_of(config, "llama", (layer_of("self_attn", attention, mlp),) * config.layer_count())
