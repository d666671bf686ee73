"""Config fields that families with Mamba1 mixers share, and those whose layers are all Mamba1 or Mamba2 mixers."""

from __future__ import annotations

from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config

# Fields of initialisation.
INITIALISATION_FIELDS = (
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
)


def time_step_rank(config: HfConfig, name: str) -> int:
    """The rank of dt_proj: field ``name``, by default a sixteenth of the hidden size, rounded up."""
    if config.raw(name, "auto") == "auto":
        return -(-int(config.positive("hidden_size")) // 16)
    rank: int = config.positive(name)
    return rank


def mamba1_of(config: HfConfig) -> Mamba1Config:
    """The mixer of jamba and zamba, without their own fields."""
    return Mamba1Config(
        intermediate_size=config.positive("mamba_expand", default=2) * config.positive("hidden_size"),
        state_size=config.positive("mamba_d_state", default=16),
        rank=time_step_rank(config, "mamba_dt_rank"),
        conv_kernel=config.positive("mamba_d_conv", default=4),
        proj_bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )


def mamba_decoder_of(config: HfConfig, model_type: str, mixer: BlockConfig, tied: bool) -> DecoderConfig:
    """A decoder whose layers are ``mixer`` alone; ``tied``: the default of ``tie_word_embeddings``."""
    config.ignore(*INITIALISATION_FIELDS)
    return DecoderConfig(
        model_type=model_type,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=(LayerConfig((mixer,)),) * config.layer_count(),
        norm_eps=config.scalar("layer_norm_epsilon", default=1e-5, positive=True),
        embedding_sources=("embeddings.weight", "embedding.weight"),
        final_norm_source="norm_f",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=tied),
        max_position_embeddings=None,
        residual_in_fp32=config.flag("residual_in_fp32", default=True),
    )
