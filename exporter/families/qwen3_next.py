"""Qwen3-Next and the text models of Qwen3.5: gated delta net or gated attention, then a gated MLP or experts."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import (
    CONV_ACTIVATIONS,
    FULL,
    LINEAR,
    attention_of,
    decoder_of,
    layer_kinds,
    layer_of,
)
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.qwen_experts import ExpertDefaults, experts_of, feed_forward_parts
from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.families.rope import SECTIONS, rope_from_config

ABSENT_HEAD_DIM, ABSENT_INTERVAL = 256, 4
PARTIAL_ROTARY = 0.25
EXPERTS, EXPERTS_3_5 = ExpertDefaults(experts=512, top_k=10), ExpertDefaults(experts=256, top_k=8)
# Fields of the multi-token prediction part, and of the type of states, which --state-dtype chooses.
UNUSED_FIELDS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
# Which frequencies turn by height and width in a picture; those of a text all turn by its one position.
PICTURE_FIELDS = (SECTIONS, "mrope_interleaved")


def parse_qwen3_next(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_next config."""
    kinds = _layer_kinds(config)
    feed_forward = feed_forward_parts(config, len(kinds), EXPERTS)
    return _decoder(config, "qwen3_next", kinds, _attention(config, 2), _mixer(config, "fused"), feed_forward)


def parse_qwen3_5(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_5_text config."""
    kinds = _layer_kinds(config)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    return _decoder(config, "qwen3_5_text", kinds, _attention(config, 4), _mixer(config, "split"), [mlp] * len(kinds))


def parse_qwen3_5_moe(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_5_moe_text config: every layer has experts, whose weights are always normalised."""
    kinds = _layer_kinds(config)
    config.expect("norm_topk_prob", (True,), True)
    config.expect("decoder_sparse_step", (1,), 1)
    config.expect("mlp_only_layers", ([], None), None)
    config.ignore("intermediate_size")
    moe = experts_of(config, EXPERTS_3_5)
    attention, mixer = _attention(config, 2), _mixer(config, "split")
    return _decoder(config, "qwen3_5_moe_text", kinds, attention, mixer, [moe] * len(kinds))


def _decoder(
    config: HfConfig,
    model_type: str,
    kinds: list[str],
    attention: AttentionConfig,
    mixer: GatedDeltaConfig,
    feed_forward: Sequence[MlpConfig | MoeConfig],
) -> DecoderConfig:
    config.expect("attn_output_gate", (True,), True)
    config.expect("use_sliding_window", (False,), False)
    # The gate of the gated norm.
    config.expect("output_gate_type", ("silu", "swish"), "silu")
    config.ignore(*UNUSED_FIELDS)
    layers = [
        layer_of("self_attn", attention, mlp) if kind == FULL else layer_of("linear_attn", mixer, mlp)
        for kind, mlp in zip(kinds, feed_forward, strict=True)
    ]
    return decoder_of(config, model_type, layers, norm_offset=1.0, ignored_sources=("mtp.",))


def _attention(config: HfConfig, absent_kv_heads: int) -> AttentionConfig:
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    rope = rope_from_config(config, head_dim, PARTIAL_ROTARY, partial=True, ignored=PICTURE_FIELDS)
    return attention_of(config, head_dim, rope, absent_kv_heads, qk_norm=True, norm_offset=1.0, output_gate=True)


def _mixer(config: HfConfig, projections: str) -> GatedDeltaConfig:
    key_heads = config.positive("linear_num_key_heads", default=16)
    value_heads = config.positive("linear_num_value_heads", default=32)
    if value_heads % key_heads:
        raise config.fail("linear_num_key_heads", f"a divisor of linear_num_value_heads {value_heads}")
    # The convolution has the activation of the MLP; the operator fuses SiLU.
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    return GatedDeltaConfig(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_size=config.positive("linear_key_head_dim", default=128),
        value_size=config.positive("linear_value_head_dim", default=128),
        conv_kernel=config.positive("linear_conv_kernel_dim", default=4),
        projections=projections,
    )


def _layer_kinds(config: HfConfig) -> list[str]:
    interval = config.positive("full_attention_interval", default=ABSENT_INTERVAL)
    absent = [LINEAR if (index + 1) % interval else FULL for index in range(config.layer_count())]
    return layer_kinds(config, absent)
