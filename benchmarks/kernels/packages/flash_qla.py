"""FlashQLA: prompts of the gated delta rule in TileLang, for Hopper and later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

DISTRIBUTION, NAME = "flash-qla", "FlashQLA"


def gated_delta_prompt(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    """o and the last states, as new tensors; shapes as ``fla.gated_delta_prompt``."""
    from flash_qla import chunk_gated_delta_rule

    tokens = (each.contiguous() for each in (q, k, v, g.squeeze(-1), beta))
    return partial(
        chunk_gated_delta_rule,
        *tokens,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        auto_cp=True,
    )
