"""Config fields of models with latent attention, and of their experts (kimi_linear, bailing_hybrid)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridge.exporter.families.attention_config import LatentAttentionConfig, RopeConfig
from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, expert_groups, top_k_of
from hybridge.exporter.families.rope import yarn_score_factor

EXPERTS = ("num_experts", "num_local_experts")
LENGTH_FIELDS = ("model_max_length", "max_position_embeddings")
CHOSEN = ("num_experts_per_token", "num_experts_per_tok")
SHARED = ("num_shared_experts", "n_shared_experts")
NORMALIZED = ("moe_renormalize", "norm_topk_prob")
GROUPS = ("num_expert_group", "n_group")
ABSENT_KV_HEADS = 32
# Fields of experts in a config without any.
EXPERT_FIELDS = (
    *ROUTER_TRAINING_FIELDS,
    *EXPERTS,
    *CHOSEN,
    *SHARED,
    *NORMALIZED,
    *GROUPS,
    "moe_intermediate_size",
    "routed_scaling_factor",
    "topk_group",
)


@dataclass(frozen=True)
class ExpertDefaults:
    """transformers' defaults for absent fields."""

    count: int
    size: int
    scaling: float
    groups: int = 1
    top_groups: int = 1


def latent_attention_of(config: HfConfig, rope: RopeConfig | None = None, **rest: Any) -> LatentAttentionConfig:
    """Latent attention by the field names of DeepSeek-V2; absent ones have the values of transformers' classes."""
    heads = config.positive("num_attention_heads")
    if config.positive("num_key_value_heads", default=ABSENT_KV_HEADS, null=heads) != heads:
        # Every head expands its own keys; transformers would repeat them.
        raise config.fail("num_key_value_heads", f"num_attention_heads {heads}")
    key_size = config.positive("qk_nope_head_dim", default=128)
    shared_size = config.positive("qk_rope_head_dim", default=64)
    return LatentAttentionConfig(
        num_heads=heads,
        rank=config.positive("kv_lora_rank", default=512),
        key_size=key_size,
        shared_size=shared_size,
        value_size=config.positive("v_head_dim", default=128),
        scale=(key_size + shared_size) ** -0.5 * (1.0 if rope is None else yarn_score_factor(config)),
        rope=rope,
        bias=config.flag("attention_bias", default=False),
        **rest,
    )


def feed_forward_of(
    config: HfConfig, layout: str, defaults: ExpertDefaults, absent_dense: int
) -> list[MlpConfig | MoeConfig]:
    """The feed-forward block of each layer: a gated MLP or experts, with SiLU.

    ``absent_dense``: the default number of first layers with an MLP.
    """
    # One activation for convolutions, MLPs and experts.
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    parts: dict[str, MlpConfig | MoeConfig] = {"dense": MlpConfig(config.positive("intermediate_size"), "silu")}
    kinds = _mlp_kinds(config, config.layer_count(), absent_dense)
    if "sparse" in kinds:
        parts["sparse"] = _experts(config, layout, defaults)
    config.ignore(*EXPERT_FIELDS)
    return [parts[kind] for kind in kinds]


def _experts(config: HfConfig, layout: str, defaults: ExpertDefaults) -> MoeConfig:
    """Experts chosen by sigmoids in groups, and shared ones of the same size."""
    experts = config.positive(*EXPERTS, default=defaults.count)
    count_field = config.name_of(*EXPERTS)
    groups, top_groups = expert_groups(config, experts, count_field, GROUPS, defaults.groups, defaults.top_groups)
    size = config.positive("moe_intermediate_size", default=defaults.size)
    shared = config.positive(*SHARED, default=1)
    choice = f"{count_field} / {config.name_of(*GROUPS)} x topk_group"
    return MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, top_groups * experts // groups, 8, choice, CHOSEN),
        intermediate_size=size,
        activation="silu",
        layout=layout,
        router="sigmoid",
        normalized=config.flag(*NORMALIZED, default=True),
        scaling=config.scalar("routed_scaling_factor", default=defaults.scaling),
        groups=groups,
        top_groups=top_groups,
        shared=MlpConfig(shared * size, "silu"),
    )


def _mlp_kinds(config: HfConfig, count: int, absent_dense: int) -> list[str]:
    """ "dense" or "sparse" for each layer: ``mlp_layer_types``, or the first ``first_k_dense_replace`` are dense."""
    dense = config.integer("first_k_dense_replace", absent_dense)
    kinds = config.array("mlp_layer_types", None)
    if kinds is None:
        return ["dense" if index < dense else "sparse" for index in range(count)]
    if len(kinds) != count or any(kind not in ("dense", "sparse") for kind in kinds):
        raise config.fail("mlp_layer_types", f"dense or sparse for each of num_hidden_layers {count} layers")
    return list(kinds)
