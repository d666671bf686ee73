"""Filters on the scores of one token position. Each returns the surviving tokens as ascending token ids.

The semantics are those of transformers' logits processors (TopK, TopP, MinP). No filter sorts
the vocabulary unless its answer needs that.
"""

from __future__ import annotations

import numpy as np

# Weights that a search for the largest ones looks at first.
FIRST_HEAD = 64


def top_k_ids(scores: np.ndarray, k: int) -> np.ndarray:
    """Ids of the tokens that score at least as much as the k-th best of ``scores`` [vocab]; ties stay."""
    if k >= scores.size:
        return np.arange(scores.size)
    kth = scores.size - k
    return np.flatnonzero(scores >= np.partition(scores, kth)[kth])


def top_p_positions(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Positions (ascending) of the fewest largest ``weights`` [n] whose sum reaches top_p of the whole.

    Sorts a growing head of the weights, so that a peaked distribution over a large vocabulary stays cheap.
    """
    threshold = top_p * weights.sum(dtype=np.float64)
    size = FIRST_HEAD
    while True:
        head = _largest(weights, size)
        cumulative = np.cumsum(weights[head], dtype=np.float64)
        if size >= weights.size or cumulative[-1] >= threshold:
            break
        size *= 8
    count = int(np.searchsorted(cumulative, threshold, side="left")) + 1
    return np.sort(head[:count])


def min_p_positions(weights: np.ndarray, min_p: float) -> np.ndarray:
    """Positions of the ``weights`` [n] that are at least min_p times the largest."""
    return np.flatnonzero(weights >= min_p * weights.max())


def _largest(weights: np.ndarray, size: int) -> np.ndarray:
    """Positions of the ``size`` largest weights, largest first, the lower position first among equals."""
    n = weights.size
    head = np.arange(n) if size >= n else np.sort(np.argpartition(weights, n - size)[n - size :])
    return head[np.argsort(-weights[head], kind="stable")]
