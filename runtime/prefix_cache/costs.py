"""What computing a token again costs, next to the bytes that would have saved it."""

from __future__ import annotations

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.prefix_cache.worth import CacheCosts

# Multiplications and additions of a layer's matrices for one token, in units of hidden_size squared: four for the
# mixer's projections and eight for an MLP of four times the width, two operations each (Marconi, arXiv 2411.19379).
_LAYER_WORK = 24.0
# Operations of one attention layer for each earlier token, in units of hidden_size: scores and values.
_ATTENTION_WORK = 4.0


def costs_of_model(config: RuntimeConfig, kv_bytes_per_token: int, state_bytes: int) -> CacheCosts:
    """FLOPs and bytes of the model, from its shapes alone."""
    width = config.hidden_size
    return CacheCosts(
        kv_bytes_per_token,
        state_bytes,
        _LAYER_WORK * width * width * config.num_hidden_layers,
        _ATTENTION_WORK * width * len(config.kv_layers),
    )
