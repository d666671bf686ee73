"""Filters on the scores of one token position. Each returns the surviving tokens as ascending token ids.

The semantics are those of transformers' logits processors (TopK, TopP, MinP). No filter sorts
the vocabulary unless its answer needs that.
"""

from __future__ import annotations

import numpy as np

from hybridge.runtime.sampling.weights import share_of, whole_weights

# How many of the largest weights top_p sorts first.
FIRST_HEAD = 64


def top_k_ids(scores: np.ndarray, k: int) -> np.ndarray:
    """Ids of the tokens that score at least as much as the k-th best of ``scores`` [vocab]; ties stay."""
    if k >= scores.size:
        return np.arange(scores.size)
    kth = scores.size - k
    return np.flatnonzero(scores >= np.partition(scores, kth)[kth])


def top_p_positions(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Positions (ascending) of the fewest largest ``weights`` [n] whose sum reaches top_p of the total.

    Sorts a growing head of the weights, so that a peaked distribution over a large vocabulary stays cheap. Sums are
    those of ``whole_weights``, which are exact.
    """
    whole = whole_weights(weights)
    share = share_of(int(whole.sum()), top_p)
    size = FIRST_HEAD
    while True:
        head = _largest(weights, size)
        running = np.cumsum(whole[head])
        if size >= weights.size or running[-1] >= share:
            break
        size *= 8
    return np.sort(head[: int(np.searchsorted(running, share)) + 1])


def min_p_positions(weights: np.ndarray, min_p: float) -> np.ndarray:
    """Positions of the ``weights`` [n] that are at least min_p times the largest."""
    return np.flatnonzero(weights >= np.float32(min_p) * weights.max())


def _largest(weights: np.ndarray, size: int) -> np.ndarray:
    """Positions of the ``size`` largest weights, largest first, the lower position first among equals."""
    if size >= weights.size:
        return np.argsort(-weights, kind="stable")
    least = np.partition(weights, weights.size - size)[weights.size - size]
    above, equal = np.flatnonzero(weights > least), np.flatnonzero(weights == least)
    return np.concatenate((above[np.argsort(-weights[above], kind="stable")], equal[: size - above.size]))
