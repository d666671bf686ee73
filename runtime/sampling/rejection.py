"""Rejection sampling: accepts or replaces a draft token so that the result follows the target distribution.

Source: Leviathan, Kalman, Matias 2023, and Chen et al. 2023. A token sampled from q is accepted with
probability min(1, p/q), else replaced by a sample of max(p - q, 0), normalised: the result is distributed as p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import RequestError


@dataclass(frozen=True, eq=False)
class DraftToken:
    """A token and the distribution [vocab] that it was sampled from; None where it was chosen deterministically.

    ``probabilities`` need not be normalised. RequestError unless the token has a probability above 0.
    """

    token: int
    probabilities: np.ndarray | None = None

    def __post_init__(self) -> None:
        known = self.probabilities
        if known is not None and not (0 <= self.token < known.size and known[self.token] > 0):
            raise RequestError(
                f"expected a draft token with a probability above 0, found token {self.token} of {known.size} without: "
                "sample it from these probabilities"
            )


def accepted_or_resampled(
    ids: np.ndarray | None, weights: np.ndarray, draft_token: DraftToken, uniform: float
) -> tuple[int, np.ndarray]:
    """(Position of the draft token, weights) if it is accepted, else (-1, the weights to sample another token from).

    The target has ``weights`` [n], unnormalised, at the ascending token ids ``ids`` (None: all tokens); the weights
    returned are float32 and at most 1. ``uniform``: a random number in [0, 1). RequestError when the probabilities of
    the draft token are negative or not finite.
    """
    assert draft_token.probabilities is not None
    target = weights.astype(np.float64)
    target /= target.sum()
    drafted = draft_token.probabilities.astype(np.float64)
    whole = drafted.sum()
    if not np.isfinite(whole) or drafted.min() < 0:
        raise RequestError(
            "expected finite, non-negative probabilities of a draft token, found others: sample it from valid "
            "probabilities"
        )
    drafted /= whole
    position = draft_token.token if ids is None else int(np.searchsorted(ids, draft_token.token))
    possible = position < target.size and (ids is None or int(ids[position]) == draft_token.token)
    if possible and uniform * drafted[draft_token.token] < target[position]:
        return position, weights
    rest = np.maximum(target - (drafted if ids is None else drafted[ids]), 0)
    # Two distributions that differ by rounding alone leave nothing.
    left = rest if rest.any() else target
    return -1, (left / left.max()).astype(np.float32)
