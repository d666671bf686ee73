"""RecurrentGemma: real-gated linear recurrent units or attention with a sliding window, then a gated MLP."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import check_shares, decoder_of, head_counts
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rg_lru import RgLruConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    # Of every other family.
    "": "initializer_range",
    "int": "num_hidden_layers intermediate_size num_attention_heads attention_window_size conv1d_width",
    "int?": "lru_width num_key_value_heads",
    "float": "logits_soft_cap rms_norm_eps w_init_variance_scale",
    "str": "hidden_activation",
    "[str]?": "block_types",
    "number": "attention_dropout",
    "bool": "attention_bias",
    "object?": "rope_parameters",
}
ABSENT = {
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
RECURRENT, ATTENTION = "recurrent", "attention"
PARTIAL_ROTARY = 0.5
# transformers repeats block_types this often.
MOST_PERIODS = 100


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a recurrent_gemma config."""
    config.fill(ABSENT)
    hidden_size = config.positive("hidden_size")
    config.ignore("w_init_variance_scale")
    # Of initialisation; transformers takes its root when it makes a model.
    if config.scalar("final_w_init_variance_scale", default=0.0) < 0:
        raise config.fail("final_w_init_variance_scale", "0 or more")
    check_shares(config, "attention_dropout")
    activation = activation_of(config, "hidden_activation", "gelu_pytorch_tanh")
    bodies: dict[str, BodyConfig] = {RECURRENT: _unit(config, activation), ATTENTION: _attention(config)}
    # Of gate and value of the MLP together.
    size = config.positive("intermediate_size") // 2
    if not size:
        raise config.fail("intermediate_size", "2 or more")
    mlp = MlpConfig(size, activation, bias=True)
    feed_forward = BlockConfig("channel_pre_norm", "mlp_block", mlp)
    names = (("conv1d", "conv_1d"),)
    layers = [
        LayerConfig((BlockConfig("temporal_pre_norm", "temporal_block", bodies[kind], names=names), feed_forward))
        for kind in _kinds(config)
    ]
    return decoder_of(
        config,
        "recurrent_gemma",
        layers,
        absent_padding=0,
        absent_tied=True,
        final_norm_source="final_norm",
        # transformers holds the factor in bfloat16.
        embedding_multiplier=float(np.array(hidden_size**0.5).astype(DType.BFLOAT16.numpy)),
        norm_offset=1.0,
        logits_softcap=config.scalar("logits_soft_cap", default=30.0, positive=True),
    )


def _kinds(config: HfConfig) -> list[str]:
    """RECURRENT or ATTENTION for each layer: ``block_types``, again and again."""
    period = config.array("block_types", [RECURRENT, RECURRENT, ATTENTION])
    if not period or any(kind not in (RECURRENT, ATTENTION) for kind in period):
        raise config.fail("block_types", f"a list of {RECURRENT} and {ATTENTION}")
    count = config.layer_count()
    if len(period) * MOST_PERIODS < count:
        raise config.fail("num_hidden_layers", f"at most {MOST_PERIODS} times the {len(period)} block_types")
    return (period * MOST_PERIODS)[:count]


def _unit(config: HfConfig, activation: str) -> RgLruConfig:
    heads, hidden_size = config.positive("num_attention_heads"), config.positive("hidden_size")
    width = config.positive("lru_width", default=hidden_size, null=hidden_size)
    if width % heads or width == 1:
        raise config.fail(
            "lru_width" if "lru_width" in config else "hidden_size", f"a multiple of num_attention_heads {heads}"
        )
    return RgLruConfig(width, heads, config.positive("conv1d_width", default=4), activation)


def _attention(config: HfConfig) -> AttentionConfig:
    heads, kv_heads = head_counts(config)
    hidden_size = config.positive("hidden_size")
    if hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    head_dim = hidden_size // heads
    config.same(head_dim, "hidden_size / num_attention_heads", "head_dim")
    return AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        bias=config.flag("attention_bias", default=False),
        output_bias=True,
        sliding_window=config.positive("attention_window_size", default=2048),
        rope=rope_from_config(config, head_dim, PARTIAL_ROTARY, partial=True, types={"default": "default"}),
    )
