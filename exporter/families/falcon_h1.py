"""Falcon-H1: attention and Mamba2 side by side in every layer, then a gated MLP; multipliers on every path."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import (
    CONV_ACTIVATIONS,
    attention_of,
    decoder_of,
    head_dim_of,
    mamba_d_mixer,
)
from hybridge.exporter.families.decoder_config import (
    BlockConfig,
    BranchConfig,
    DecoderConfig,
    LayerConfig,
    ParallelConfig,
)
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.recurrent_config import MambaConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_KV_HEADS, ABSENT_SSM_SIZE = 8, 1024


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a falcon_h1 config."""
    mixers = ParallelConfig(
        BranchConfig(
            "self_attn",
            _attention(config),
            config.scalar("attention_in_multiplier", default=1.0),
            config.scalar("attention_out_multiplier", default=1.0),
        ),
        BranchConfig(
            "mamba",
            _mamba(config),
            config.scalar("ssm_in_multiplier", default=1.0),
            config.scalar("ssm_out_multiplier", default=1.0),
        ),
    )
    layer = LayerConfig(
        (
            BlockConfig("input_layernorm", "", mixers),
            BlockConfig("pre_ff_layernorm", "feed_forward", _mlp(config)),
        )
    )
    return decoder_of(
        config,
        "falcon_h1",
        (layer,) * config.layer_count(),
        norm_eps=1e-5,
        absent_padding=0,
        final_norm_source="final_layernorm",
        embedding_multiplier=config.scalar("embedding_multiplier", default=1.0),
        logits_scaling=1.0 / config.scalar("lm_head_multiplier", default=1.0, positive=True),
    )


def _attention(config: HfConfig) -> AttentionConfig:
    head_dim = head_dim_of(config)
    rope, keys = rope_from_config(config, head_dim), config.scalar("key_multiplier", default=1.0)
    return attention_of(config, head_dim, rope, ABSENT_KV_HEADS, key_multiplier=keys)


def _mamba(config: HfConfig) -> MambaConfig:
    size = config.positive("mamba_d_ssm", default=ABSENT_SSM_SIZE, null=None)
    multipliers = _multipliers(config, "ssm_multipliers", 5)
    return replace(
        mamba_d_mixer(config, size, "mamba_d_ssm"),
        has_norm=config.flag("mamba_rms_norm", default=False, null=False),
        norm_before_gate=config.flag("mamba_norm_before_gate", default=True, null=False),
        out_bias=config.flag("projectors_bias", default=False, null=False),
        multipliers=None if set(multipliers) == {1.0} else multipliers,
    )


def _mlp(config: HfConfig) -> MlpConfig:
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    # Every layer has its MLP, in transformers whatever this says.
    config.expect("mamba_use_mlp", (True,), True)
    gate, down = _multipliers(config, "mlp_multipliers", 2)
    bias = config.flag("mlp_bias", default=False)
    size = config.positive("intermediate_size")
    return MlpConfig(size, "silu", bias=bias, gate_multiplier=gate, down_multiplier=down)


def _multipliers(config: HfConfig, name: str, count: int) -> tuple[float, ...]:
    """``count`` finite numbers; 1 each where the field is absent or null."""
    values = config.numbers(name, count)
    return (1.0,) * count if values is None else values
