"""Config fields of models whose layers are all Mamba1 or Mamba2 mixers (mamba, falcon_mamba, mamba2)."""

from __future__ import annotations

from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig

# Fields of initialisation.
INITIALISATION_FIELDS = (
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
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
