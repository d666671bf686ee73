"""Rejection sampling: a guessed token becomes a draw from the target distribution.

Source: Leviathan, Kalman, Matias 2023, and Chen et al. 2023. A token drawn from q is kept with probability
min(1, p/q), else replaced by a draw from max(p - q, 0), normalised: what comes out is distributed as p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridge.artifact.errors import RequestError


@dataclass(frozen=True, eq=False)
class Guess:
    """A token, and the distribution [vocab] that it was drawn from; None where no other token could have been guessed.

    ``probabilities`` need not be normalised. RequestError unless the token has a probability above 0.
    """

    token: int
    probabilities: np.ndarray | None = None

    def __post_init__(self) -> None:
        known = self.probabilities
        if known is not None and not (0 <= self.token < known.size and known[self.token] > 0):
            raise RequestError(
                f"expected a guess that its distribution can give, found token {self.token} of {known.size} without "
                "probability: draw it from these probabilities"
            )


def kept_or_redrawn(
    ids: np.ndarray | None, weights: np.ndarray, guess: Guess, random: np.random.Generator
) -> tuple[int, np.ndarray]:
    """Whether the guess is kept: (its position, weights), else (-1, the weights to draw another token from).

    The target has ``weights`` [n], unnormalised, at the ascending token ids ``ids`` (None: all tokens). RequestError
    when the guess comes with probabilities that are none.
    """
    assert guess.probabilities is not None
    target = weights.astype(np.float64)
    target /= target.sum()
    drafted = guess.probabilities.astype(np.float64)
    whole = drafted.sum()
    if not np.isfinite(whole) or drafted.min() < 0:
        raise RequestError(
            "expected probabilities of a guess that are finite and not negative, found others: draw it from these "
            "probabilities"
        )
    drafted /= whole
    position = guess.token if ids is None else int(np.searchsorted(ids, guess.token))
    possible = position < target.size and (ids is None or int(ids[position]) == guess.token)
    if possible and random.random() * drafted[guess.token] < target[position]:
        return position, weights
    rest = np.maximum(target - (drafted if ids is None else drafted[ids]), 0)
    # Two distributions that differ by rounding alone leave nothing.
    return -1, rest if rest.any() else target
