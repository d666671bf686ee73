"""Which layers of a Qwen model have experts, and what their config fields say of them."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.exporter.families.activation_names import activation_of, expert_activation_of
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of

# Fields of experts in a config without any.
EXPERT_FIELDS = (
    *ROUTER_TRAINING_FIELDS,
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts_per_tok",
)
SHARED_SIZE = "shared_expert_intermediate_size"


@dataclass(frozen=True)
class ExpertDefaults:
    """Defaults of transformers. ``shared_size`` None: the family has no shared expert.

    ``names`` are the spellings of the field with the number of experts.
    """

    experts: int
    top_k: int
    intermediate_size: int = 512
    normalized: bool = True
    shared_size: int | None = 512
    names: tuple[str, ...] = ("num_experts",)


def feed_forward_parts(config: HfConfig, count: int, defaults: ExpertDefaults) -> list[MlpConfig | MoeConfig]:
    """The part after the mixer in each of ``count`` layers: experts, or a gated MLP."""
    experts = config.integer(config.name_of(*defaults.names), defaults.experts, minimum=0)
    every = config.positive("decoder_sparse_step", default=1)
    plain = set(config.array("mlp_only_layers", None) or [])
    sparse = [experts > 0 and index not in plain and (index + 1) % every == 0 for index in range(count)]
    kinds: dict[bool, MlpConfig | MoeConfig] = {}
    if not any(sparse):
        # There is no router whose logits transformers could return.
        config.expect("output_router_logits", (False,), False)
    else:
        normalized = config.flag("norm_topk_prob", default=defaults.normalized)
        kinds[True] = experts_of(config, defaults, normalized)
    if not all(sparse):
        activation = activation_of(config)
        kinds[False] = MlpConfig(config.positive("intermediate_size"), activation)
    config.ignore("intermediate_size", *EXPERT_FIELDS)
    if defaults.shared_size is not None:
        config.ignore(SHARED_SIZE)
    return [kinds[is_sparse] for is_sparse in sparse]


def experts_of(config: HfConfig, defaults: ExpertDefaults, normalized: bool = True) -> MoeConfig:
    """The experts of a layer, with a gated shared one where the family has it."""
    experts = config.positive(*defaults.names, default=defaults.experts)
    activation = activation_of(config)
    config.ignore(*ROUTER_TRAINING_FIELDS)
    shared = None
    if defaults.shared_size is not None:
        shared = MlpConfig(config.positive(SHARED_SIZE, default=defaults.shared_size), activation)
    return MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, experts, defaults.top_k, config.name_of(*defaults.names)),
        intermediate_size=config.positive("moe_intermediate_size", default=defaults.intermediate_size),
        **expert_activation_of(config),
        layout="qwen",
        router="softmax",
        normalized=normalized,
        shared=shared,
        shared_gate=shared is not None,
    )
