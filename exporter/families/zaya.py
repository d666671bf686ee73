"""ZAYA1: attention over convolved queries and keys, one expert or none for each token, scaled residuals in float32."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import expert_activation_of
from hybridge.exporter.families.attention_config import ConvolutionalAttentionConfig, RopeConfig
from hybridge.exporter.families.common_fields import decoder_of, head_counts
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.rope import number, rope_fields, rope_of

KINDS = {
    "int": "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings "
    "moe_intermediate_size num_experts_per_tok num_experts head_dim router_hidden_size cca_time0 cca_time1",
    "int?": "sliding_window",
    "float": "rms_norm_eps",
    "str": "hidden_act",
    "bool": "tie_word_embeddings output_router_logits attention_bias lm_head_bias",
    "number": "attention_dropout",
    "object?": "rope_parameters",
    "[str]?": "layer_types",
}
ABSENT = {
    "vocab_size": 262272,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "num_experts": 16,
    "head_dim": 128,
    "router_hidden_size": 256,
    "cca_time0": 2,
    "cca_time1": 2,
}
FULL, SLIDING = "hybrid", "hybrid_sliding"
ABSENT_THETAS, ABSENT_SHARE, ABSENT_PADDING = {FULL: 5e6, SLIDING: 1e4}, 0.5, 0
ROPE_TYPES = {"default": "default", "linear": "linear"}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a zaya config."""
    config.fill(ABSENT)
    config.ignore("output_router_logits")
    config.positive("num_experts_per_tok", default=1)
    config.expect("num_experts_per_tok", (1,), 1)
    config.expect("lm_head_bias", (False,), False)
    attention, count = _attention(config), config.layer_count()
    kinds = _layer_kinds(config, count)
    window = config.positive("sliding_window", default=None, null=None)
    if window is None and SLIDING in kinds:
        raise config.fail("sliding_window", f"a window, because layer_types has {SLIDING}")
    windows = {FULL: None, SLIDING: window}
    ropes = {kind: _rope(config, kind, attention.head_dim) for kind in dict.fromkeys(kinds)}
    eps = config.scalar("rms_norm_eps", default=1e-5, positive=True)
    experts = MoeConfig(
        num_experts=config.positive("num_experts"),
        top_k=1,
        intermediate_size=config.positive("moe_intermediate_size"),
        **expert_activation_of(config),
        layout="zaya",
        router="mlp",
        router_size=config.positive("router_hidden_size"),
        router_eps=eps,
    )
    layers = [
        LayerConfig(
            (
                BlockConfig(
                    "input_layernorm",
                    "self_attn",
                    replace(attention, rope=ropes[kind], sliding_window=windows[kind]),
                    residual_scale="post_attention_residual_scale",
                ),
                BlockConfig(
                    "post_attention_layernorm",
                    "mlp",
                    replace(experts, router_adds=index > 0),
                    residual_scale="post_mlp_residual_scale",
                ),
            )
        )
        for index, kind in enumerate(kinds)
    ]
    return decoder_of(
        config,
        "zaya",
        layers,
        norm_eps=1e-5,
        absent_padding=ABSENT_PADDING,
        absent_tied=True,
        residual_in_fp32=True,
        scaled_embeddings=True,
    )


def _attention(config: HfConfig) -> ConvolutionalAttentionConfig:
    heads, kv_heads = head_counts(config)
    head_dim = config.positive("head_dim")
    if kv_heads * head_dim % 2:
        raise config.fail("head_dim", f"an even number of channels in {kv_heads} key/value heads")
    return ConvolutionalAttentionConfig(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        depthwise_kernel=config.positive("cca_time0"),
        grouped_kernel=config.positive("cca_time1"),
        bias=config.flag("attention_bias", default=False),
    )


def _layer_kinds(config: HfConfig, count: int) -> list[str]:
    kinds = config.array("layer_types", None)
    if kinds is None:
        return [FULL] * count
    if len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
        raise config.fail("layer_types", f"a list of num_hidden_layers {count} entries, {FULL} or {SLIDING}")
    return list(kinds)


def _rope(config: HfConfig, kind: str, head_dim: int) -> RopeConfig:
    """The rotary embedding of a kind of layer; a rope_type beside the kinds has no effect."""
    value = config.raw("rope_parameters", None)
    if value is None:
        value = {kind: {"rope_theta": ABSENT_THETAS[kind], "partial_rotary_factor": ABSENT_SHARE}}
    known = isinstance(value, dict) and set(value) <= {FULL, SLIDING, "rope_type"}
    if not known or not isinstance(value.get(kind), dict):
        raise config.fail("rope_parameters", f"an object with an object {kind}, or null")
    fields = rope_fields(value[kind], f"rope_parameters.{kind}", ROPE_TYPES)
    theta = number(fields, "rope_theta")
    if theta is None:
        raise fields.fail("rope_theta", "a number")
    share = number(fields, "partial_rotary_factor") or 1.0
    if share > 1:
        raise fields.fail("partial_rotary_factor", "at most 1")
    return rope_of(fields, head_dim, theta, share, config.positive("max_position_embeddings"))
