"""MiniMax-Text-01: lightning or full attention, then experts; residuals are taken after the norm."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import expert_activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import FULL, LINEAR, attention_of, decoder_of, head_dim_of, layer_kinds
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of
from hybridge.exporter.families.recurrent_config import LightningAttentionConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_KV_HEADS, ABSENT_THETA, ABSENT_EXPERTS, ABSENT_TOP_K = 8, 1e6, 8, 2
EXPERTS = ("num_local_experts", "num_experts")
# Fields of training.
UNUSED_FIELDS = ("router_jitter_noise", *ROUTER_TRAINING_FIELDS)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a minimax config."""
    config.ignore(*UNUSED_FIELDS)
    # transformers builds the projections without a bias whatever the config says.
    config.expect("attention_bias", (False,), False)
    # One activation for linear attention and experts.
    config.expect("hidden_act", ("silu", "swish"), "silu")
    head_dim, count = head_dim_of(config), config.layer_count()
    rope = rope_from_config(config, head_dim, absent_theta=ABSENT_THETA)
    # A window of the layers that are called full attention; no published model has one.
    config.expect("sliding_window", (None,), None)
    attention = attention_of(config, head_dim, rope, ABSENT_KV_HEADS)
    kinds = layer_kinds(config, [LINEAR if index % 2 else FULL for index in range(count)])
    factors = {kind: _factors(config, name) for kind, name in ((FULL, "full_attn"), (LINEAR, "linear_attn"))}
    moe, moe_factors = _experts(config), _factors(config, "mlp")
    layers, chunk = [], config.positive("block_size", default=256)
    for index, kind in enumerate(kinds):
        lightning = LightningAttentionConfig(attention.num_heads, head_dim, index, count, chunk)
        mixer: AttentionConfig | LightningAttentionConfig = attention if kind == FULL else lightning
        layers.append(
            LayerConfig(
                (
                    BlockConfig("input_layernorm", "self_attn", mixer, residual_factors=factors[kind]),
                    BlockConfig("post_attention_layernorm", "block_sparse_moe", moe, residual_factors=moe_factors),
                )
            )
        )
    return decoder_of(config, "minimax", layers, norm_eps=1e-5)


def _factors(config: HfConfig, name: str) -> tuple[float, float]:
    """The multipliers of the residual and of the layer's output."""
    return config.scalar(f"{name}_alpha_factor", default=1.0), config.scalar(f"{name}_beta_factor", default=1.0)


def _experts(config: HfConfig) -> MoeConfig:
    experts = config.positive(*EXPERTS, default=ABSENT_EXPERTS)
    return MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, experts, ABSENT_TOP_K, config.name_of(*EXPERTS)),
        intermediate_size=config.positive("intermediate_size"),
        **expert_activation_of(config),
        layout="lfm2",
        router="softmax",
    )
