"""Config fields that the families with experts share."""

from __future__ import annotations

from hybridge.exporter.families.hf_config import HfConfig

# Fields of the experts' training.
ROUTER_TRAINING_FIELDS = ("output_router_logits", "router_aux_loss_coef")


def expert_groups(
    config: HfConfig, experts: int, count_field: str, names: tuple[str, ...], absent: int = 1, absent_top: int = 1
) -> tuple[int, int]:
    """The number of groups of experts, a field called one of ``names``, and of those that a token may choose from."""
    groups, top_groups = config.positive(*names, default=absent), config.positive("topk_group", default=absent_top)
    # A group's score comes from two of its experts.
    if experts % groups or experts // groups < 2:
        raise config.fail(
            config.name_of(*names), f"a divisor of {count_field} {experts} that leaves two experts a group"
        )
    if top_groups > groups:
        raise config.fail("topk_group", f"at most {config.name_of(*names)} {groups}")
    return groups, top_groups


def top_k_of(
    config: HfConfig, experts: int, default: int, count_field: str, names: tuple[str, ...] = ("num_experts_per_tok",)
) -> int:
    """The field called one of ``names``; CheckpointError where a token has fewer ``experts`` to choose from.

    ``count_field`` is the field that gives their number.
    """
    top_k: int = config.positive(*names, default=default)
    if top_k > experts:
        raise config.fail(config.name_of(*names), f"at most {count_field}, the {experts} that a token can choose from")
    return top_k
