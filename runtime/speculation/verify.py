"""Acceptance: draft tokens that the model would have chosen itself."""

from __future__ import annotations

from collections.abc import Callable

from hybridge.runtime.sampling import DraftToken
from hybridge.runtime.speculation.proposal import Proposal

Choose = Callable[[int, DraftToken | None], int | None]


def accepted_count(proposal: Proposal, choose: Choose) -> int:
    """The number of proposed tokens that are accepted.

    ``choose(place, draft_token)`` chooses the next token from the logits after ``place`` draft tokens, and returns it,
    or None when the sequence has ended with it. It is called until a token differs from the draft token, and again
    after the last accepted one: once for each new token. With ``Sampler.sample(logits, best, draft_token)`` greedy
    tokens are those of the model alone, sampled ones have the same distribution, and where the proposal has no
    probabilities they are the same for the same seed.
    """
    for place, token in enumerate(proposal.token_ids):
        if choose(place, proposal.draft_token(place)) != token:
            return place
    choose(len(proposal), None)
    return len(proposal)
