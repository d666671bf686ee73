"""The distributions that tokens are sampled from, each step of the filters written out in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.runtime.sampling import SamplingParams
from tests.runtime.sampling.edited import edited


def joint(
    logits_of: Callable[[list[int]], np.ndarray], params: SamplingParams, prompt: Sequence[int], count: int
) -> np.ndarray:
    """Probability [vocab, ...] of all continuations by ``count`` tokens, which the penalties follow."""
    whole = np.ones(())
    for place in range(count):
        next_one = [processed(logits_of([*prompt, *index]), prompt, index, params) for index in np.ndindex(whole.shape)]
        whole = whole[..., None] * np.reshape(next_one, (*whole.shape, -1))
        assert whole.ndim == place + 1
    return whole


def processed(logits: np.ndarray, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams) -> np.ndarray:
    """Probabilities [vocab] after edits, temperature, top_k, top_p and min_p. No two logits may be equal."""
    scores = edited(logits, params, prompt, answer)
    p = np.exp(scores / params.temperature)
    order = np.argsort(-p)
    if params.top_k:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    if params.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(p[order]), params.top_p)) + 1
        p[order[kept:]] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()
