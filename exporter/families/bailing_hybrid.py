"""Ling 3.0: Kimi Delta Attention, and latent attention with a rotary embedding and a gate of each head."""

from __future__ import annotations

from hybridge.artifact.limits import LAYERS
from hybridge.exporter.families.common_fields import FULL, LINEAR, decoder_of, layer_kinds
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.latent_fields import (
    LENGTH_FIELDS,
    ExpertDefaults,
    feed_forward_of,
    latent_attention_of,
)
from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_PADDING, ABSENT_THETA, ABSENT_DENSE, ABSENT_INTERVAL = 156892, 6e6, 2, 6
EXPERTS = ExpertDefaults(count=512, size=768, scaling=2.5, groups=8, top_groups=4)
MTP_FIELDS = ("num_nextn_predict_layers", "num_mtp_layers")
# Names that follow from others, and fields of training.
UNUSED_FIELDS = ("qk_head_dim", "pretraining_tp", "mtp_loss_scaling_factor")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a bailing_hybrid config."""
    config.ignore(*UNUSED_FIELDS)
    rotary = config.positive("qk_rope_head_dim", default=64)
    if rotary % 2:
        raise config.fail("qk_rope_head_dim", "an even number")
    rope = rope_from_config(config, rotary, absent_theta=ABSENT_THETA)
    attention = BlockConfig(
        "input_layernorm",
        "attention",
        latent_attention_of(config, rope=rope, head_gate=True),
        names=(("o_proj", "dense"),),
    )
    mixer = BlockConfig(
        "input_layernorm", "attention", _mixer(config), names=(("norm", "o_norm"), ("out_proj", "dense"))
    )
    kinds, mixers = _layer_kinds(config), {FULL: attention, LINEAR: mixer}
    parts = feed_forward_of(config, "ling", EXPERTS, ABSENT_DENSE)
    layers = [
        LayerConfig((mixers[kind], BlockConfig("post_attention_layernorm", "mlp", part)))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    # Layers after the last one predict further tokens.
    predictors = config.integer(config.name_of(*MTP_FIELDS), 1, minimum=0)
    return decoder_of(
        config,
        "bailing_hybrid",
        layers,
        absent_padding=ABSENT_PADDING,
        embedding_source="word_embeddings.weight",
        length_fields=LENGTH_FIELDS,
        own_head_wins=True,
        ignored_sources=tuple(f"layers.{len(layers) + index}." for index in range(min(predictors, LAYERS))),
    )


def _mixer(config: HfConfig) -> GatedDeltaConfig:
    """transformers saves the sizes under other names, and head_dim is that of the rotary embedding."""
    heads, head_dim = config.positive("num_attention_heads"), config.positive("head_dim", default=128)
    kernel = config.positive("short_conv_kernel_size", default=4)
    heads = config.positive("linear_num_heads", default=heads)
    size = config.positive("linear_head_dim", default=head_dim)
    bound = config.scalar("kda_lower_bound", default=-5.0)
    if bound > 0:
        raise config.fail("kda_lower_bound", "at most 0, as the log of a decay is")
    return GatedDeltaConfig(
        num_key_heads=heads,
        num_value_heads=heads,
        key_size=size,
        value_size=size,
        conv_kernel=config.positive("linear_conv_kernel_dim", default=kernel),
        projections="channels",
        decay_bound=bound if config.flag("kda_safe_gate", default=True) else None,
        gate_activation="sigmoid",
    )


def _layer_kinds(config: HfConfig) -> list[str]:
    interval = config.positive("layer_group_size", default=ABSENT_INTERVAL)
    return layer_kinds(config, [LINEAR if (index + 1) % interval else FULL for index in range(config.layer_count())])
