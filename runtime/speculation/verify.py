"""Acceptance: the candidates that the model would have chosen itself."""

from __future__ import annotations

from collections.abc import Callable

from hybridge.runtime.sampling import Guess
from hybridge.runtime.speculation.proposal import Proposal

Choose = Callable[[int, Guess | None], int | None]


def accepted_count(proposal: Proposal, choose: Choose) -> int:
    """How many of the proposed tokens are accepted.

    ``choose(place, guess)`` chooses the next token from the logits after ``place`` candidates, and returns it, or None
    when the sequence has ended with it. It is called until a token is not the guess for its place, and once more after
    the last candidate: as often as there are new tokens. A token chosen with ``Sampler.sample(logits, best, guess)``
    equals the guess just as often as makes the tokens those of the model alone: greedy tokens are the same, drawn ones
    have the same distribution, and where the proposal has no probabilities they are the same for the same seed.
    """
    for place, token in enumerate(proposal.token_ids):
        if choose(place, proposal.guess(place)) != token:
            return place
    choose(len(proposal), None)
    return len(proposal)
