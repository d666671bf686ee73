"""Config fields that the families with experts share."""

from __future__ import annotations

from hybridge.exporter.families.hf_config import HfConfig

# Fields of the experts' training.
ROUTER_TRAINING_FIELDS = ("output_router_logits", "router_aux_loss_coef")


def top_k_of(config: HfConfig, experts: int, default: int, count_field: str) -> int:
    """``num_experts_per_tok``; CheckpointError where a token has not that many ``experts`` to choose from.

    ``count_field`` is the field that gives their number.
    """
    top_k: int = config.positive("num_experts_per_tok", default=default)
    if top_k > experts:
        raise config.fail("num_experts_per_tok", f"at most {count_field}, the {experts} that a token can choose from")
    return top_k
