"""Log-probabilities of the model's own distribution: before penalty, temperature and filters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural log-probability of the chosen token, and the most likely tokens as (token id, log-probability)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of ``logits`` [vocab] at ``token``, with the ``count`` most likely tokens, most likely first.

    Tokens of equal probability are listed in the order of their ids.
    """
    peak = float(logits.max())
    normaliser = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    count = min(count, logits.size)
    if count == 0:
        return TokenLogprobs(token, float(logits[token]) - normaliser)
    kth = np.partition(logits, logits.size - count)[logits.size - count]
    candidates = np.flatnonzero(logits >= kth)
    best = candidates[np.argsort(-logits[candidates], kind="stable")][:count]
    top = tuple((int(i), float(logits[i]) - normaliser) for i in best)
    return TokenLogprobs(token, float(logits[token]) - normaliser, top)
