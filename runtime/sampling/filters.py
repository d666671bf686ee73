"""Filters on the scores of one token position. Each returns the surviving tokens as ascending token ids.

The semantics are those of transformers' logits processors (TopK, TopP, MinP).
"""

from __future__ import annotations

import numpy as np

from hybridge.runtime.sampling.weights import block_sums, share_of, whole_weights

# The number of largest weights that are sorted first.
_HEAD = 1024


def top_k_ids(scores: np.ndarray, k: int) -> np.ndarray:
    """Ids of the tokens that score at least as much as the k-th best of ``scores`` [vocab]; ties stay."""
    if k >= scores.size:
        return np.arange(scores.size)
    kth = scores.size - k
    return np.flatnonzero(scores >= np.partition(scores, kth)[kth])


def top_p_positions(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Positions (ascending) of the fewest largest ``weights`` [n] whose sum reaches top_p of the total.

    Of equal weights the first ones. Sums are those of ``whole_weights``, which are exact. A peaked distribution over a
    large vocabulary needs only its largest weights sorted.
    """
    share = share_of(int(block_sums(weights, 1024).sum()), top_p)
    skipped = max(0, weights.size - _HEAD)
    ordered = np.sort(np.partition(weights, skipped)[skipped:])[::-1]
    running = np.cumsum(whole_weights(ordered))
    if running[-1] < share:
        ordered = np.sort(weights)[::-1]
        running = np.cumsum(whole_weights(ordered))
    edge = int(np.searchsorted(running, share))
    survive = weights > ordered[edge]
    ties = np.flatnonzero(weights == ordered[edge])
    survive[ties[: edge + 1 - int(np.count_nonzero(survive))]] = True
    return np.flatnonzero(survive)


def min_p_positions(weights: np.ndarray, min_p: float) -> np.ndarray:
    """Positions of the ``weights`` [n] that are at least min_p times the largest."""
    return np.flatnonzero(weights >= np.float32(min_p) * weights.max())
