"""flashinfer: sampling."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

DISTRIBUTION, NAME = "flashinfer-python", "flashinfer"


def sampled(logits: Tensor, temperature: float, top_p: float, top_k: int, order: str) -> Callable[[], Tensor]:
    """Tokens of logits [rows, vocabulary]. top_k: 0 for all; else order: "top_k_first" or "joint".

    The kernels take probabilities, whose computation by its softmax is part of the time. Seed and offset are fixed: as
    numbers on the host they cost nothing.
    """
    from flashinfer import sampling

    def run() -> Tensor:
        probabilities = sampling.softmax(logits, temperature=temperature)
        if not top_k:
            return sampling.top_p_sampling_from_probs(probabilities, top_p, seed=1, offset=0)
        return sampling.top_k_top_p_sampling_from_probs(
            probabilities, top_k, top_p, filter_apply_order=order, seed=1, offset=0
        )

    return run
