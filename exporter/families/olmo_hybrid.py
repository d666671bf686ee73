"""OLMo-Hybrid: gated delta net layers with norms in front, attention layers with norms behind."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig, RopeConfig
from hybridge.exporter.families.common_fields import (
    CONV_ACTIVATIONS,
    FULL,
    LINEAR,
    attention_of,
    decoder_of,
    head_dim_of,
    layer_kinds,
)
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.families.rope import rope_from_config

# What transformers gives the embedding where the config does not say.
ABSENT_PADDING = 100277
# transformers fixes the epsilon of the norm of each head.
HEAD_NORM_EPS = 1e-5
MIXER_NAMES = (("norm", "o_norm"), ("out_proj", "o_proj"))
# Fields of the first values of A_log and dt_bias.
TRAINING_FIELDS = (
    "linear_a_log_max",
    "linear_a_log_min",
    "linear_dt_init_floor",
    "linear_dt_max",
    "linear_dt_min",
)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an olmo_hybrid config."""
    config.ignore(*TRAINING_FIELDS)
    # The output of every linear layer has a gate.
    config.expect("linear_use_gate", (True,), True)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    layers = {FULL: _attention_layer(_attention(config), mlp), LINEAR: _recurrent_layer(_mixer(config), mlp)}
    return decoder_of(
        config,
        "olmo_hybrid",
        [layers[kind] for kind in _layer_kinds(config)],
        absent_padding=ABSENT_PADDING,
        ignored_sources=("mtp.",),
    )


def _attention_layer(attention: AttentionConfig, mlp: MlpConfig) -> LayerConfig:
    # transformers renames the first norm when it saves a checkpoint, as it does in the other layers.
    return LayerConfig(
        (
            BlockConfig("post_attention_layernorm", "self_attn", attention, "feedforward_layer_norm", norm_after=True),
            BlockConfig("post_feedforward_layernorm", "mlp", mlp, norm_after=True),
        )
    )


def _recurrent_layer(mixer: GatedDeltaConfig, mlp: MlpConfig) -> LayerConfig:
    return LayerConfig(
        (
            BlockConfig("input_layernorm", "linear_attn", mixer, "attention_layer_norm", names=MIXER_NAMES),
            BlockConfig("post_attention_layernorm", "mlp", mlp, "feedforward_layer_norm"),
        )
    )


def _attention(config: HfConfig) -> AttentionConfig:
    head_dim = head_dim_of(config)
    return attention_of(config, head_dim, _rope(config, head_dim), qk_norm=True, qk_norm_joint=True)


def _rope(config: HfConfig, head_dim: int) -> RopeConfig | None:
    """The rotary embedding; none where rope_theta is given as null."""
    value = config.raw("rope_parameters", None) or config.raw("rope_scaling", None)
    inside = value if isinstance(value, dict) else {}
    absent = inside["rope_theta"] is None if "rope_theta" in inside else config.raw("rope_theta", 0) is None
    return None if absent else rope_from_config(config, head_dim)


def _mixer(config: HfConfig) -> GatedDeltaConfig:
    heads = config.positive("num_attention_heads")
    key_heads = config.positive("linear_num_key_heads", default=heads, null=heads)
    value_heads = config.positive("linear_num_value_heads", default=heads, null=heads)
    if value_heads % key_heads:
        raise config.fail("linear_num_key_heads", f"a divisor of linear_num_value_heads {value_heads}")
    own = int(0.75 * config.positive("hidden_size") / key_heads)
    key_size = config.positive("linear_key_head_dim", default=own, null=own)
    if key_size < 1:
        raise config.fail("linear_key_head_dim", "a positive integer")
    # The convolution has the activation of the MLP; the operator fuses SiLU.
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    return GatedDeltaConfig(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_size=key_size,
        value_size=config.positive("linear_value_head_dim", default=2 * key_size, null=2 * key_size),
        conv_kernel=config.positive("linear_conv_kernel_dim", default=4),
        projections="separate",
        beta_scale=2.0 if config.flag("linear_allow_neg_eigval", default=True) else 1.0,
        norm_eps=HEAD_NORM_EPS,
    )


def _layer_kinds(config: HfConfig) -> list[str]:
    count = config.layer_count()
    absent = [FULL if index % 4 == 3 else LINEAR for index in range(count)]
    if count < 4:
        absent[-1] = FULL
    return layer_kinds(config, absent)
