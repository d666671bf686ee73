"""LFM2-MoE: LFM2's mixers, then a gated MLP in the first layers and experts in all others."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import layer_kinds
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.lfm2 import CONV, lfm2_decoder
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of

# What transformers takes where the config does not say.
ABSENT_INTERMEDIATE_SIZE, ABSENT_EXPERTS, ABSENT_TOP_K, ABSENT_EXPERT_SIZE, ABSENT_DENSE = 7168, 32, 4, 1792, 2
# Added to the sum of the scores, by which they are divided.
SUM_EPSILON = 1e-6
EXPERT_FIELDS = (
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "use_expert_bias",
)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an lfm2_moe config."""
    count = config.layer_count()
    if config.raw("layer_types", None) is None:
        raise config.fail("layer_types", f"a list of num_hidden_layers {count} entries")
    dense = config.integer("num_dense_layers", ABSENT_DENSE)
    mlp = MlpConfig(config.positive("intermediate_size", default=ABSENT_INTERMEDIATE_SIZE), "silu")
    config.ignore(*ROUTER_TRAINING_FIELDS)
    parts: list[MlpConfig | MoeConfig] = [mlp] * count
    if dense < count:
        moe = _experts(config)
        parts = [mlp if index < dense else moe for index in range(count)]
    config.ignore(*EXPERT_FIELDS)
    return lfm2_decoder(config, "lfm2_moe", layer_kinds(config, [CONV] * count, CONV), parts)


def _experts(config: HfConfig) -> MoeConfig:
    experts = config.positive("num_experts", default=ABSENT_EXPERTS)
    return MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, experts, ABSENT_TOP_K, "num_experts"),
        intermediate_size=config.positive("moe_intermediate_size", default=ABSENT_EXPERT_SIZE),
        activation="silu",
        layout="lfm2",
        router="sigmoid",
        normalized=config.flag("norm_topk_prob", default=True),
        scaling=config.scalar("routed_scaling_factor", default=1.0),
        correction_bias=config.flag("use_expert_bias", default=True),
        sum_epsilon=SUM_EPSILON,
    )
