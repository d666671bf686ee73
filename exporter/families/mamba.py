"""Mamba and Falcon Mamba: Mamba1 mixers only."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config
from hybridge.exporter.families.mamba_fields import mamba_decoder_of, time_step_rank

# Where dt_proj keeps the bias that the operator adds.
MIXER_NAMES = (("dt_bias", "dt_proj.bias"),)
# Fields that choose an implementation.
IMPLEMENTATIONS = ("use_associative_scan", "use_mambapy", "use_falcon_mambapy")
# Fields of the mamba_ssm package in early converted checkpoints.
PACKAGE_FIELDS = ("fused_add_norm", "pad_vocab_size_multiple")


def parse_mamba(config: HfConfig) -> DecoderConfig:
    """Translate a mamba config."""
    config.expect("rms_norm", (True,), True)
    config.expect("ssm_cfg", ({}, None), None)
    config.ignore(*PACKAGE_FIELDS)
    config.same(config.positive("hidden_size"), "hidden_size", "d_model")
    config.same(config.layer_count(), "num_hidden_layers", "n_layer")
    return _decoder(config, "mamba", "")


def parse_falcon_mamba(config: HfConfig) -> DecoderConfig:
    """Translate a falcon_mamba config: dt, B and C are normed, without weights."""
    return _decoder(config, "falcon_mamba", "plain", config.scalar("mixer_rms_eps", default=1e-6, positive=True))


def _decoder(config: HfConfig, model_type: str, inner_norms: str, norm_eps: float = 1e-6) -> DecoderConfig:
    hidden_size = config.positive("hidden_size")
    # Published falcon_mamba configs have an ``expand`` that their layers do not follow.
    size = config.positive("intermediate_size", default=config.positive("expand", default=2) * hidden_size)
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    config.same(size, "intermediate_size", "d_inner")
    config.ignore(*IMPLEMENTATIONS)
    mixer = Mamba1Config(
        intermediate_size=size,
        state_size=config.positive("state_size", default=16),
        rank=time_step_rank(config, "time_step_rank"),
        conv_kernel=config.positive("conv_kernel", default=4),
        proj_bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
        inner_norms=inner_norms,
        norm_eps=norm_eps,
    )
    return mamba_decoder_of(config, model_type, BlockConfig("norm", "mixer", mixer, names=MIXER_NAMES), tied=True)
