"""Acceptance over a toy model that knows its own distributions: tokens are those of the model alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling import DraftToken, Sampler, SamplingParams
from hybridge.runtime.speculation import Proposal, accepted_count
from tests.runtime.sampling.chi_square import chi_square_fits
from tests.runtime.speculation.processed import joint
from tests.support.effort import examples

VOCAB = 4
Draft = Callable[[list[int]], Proposal]


def model_logits(tokens: list[int], seed: int = 0) -> np.ndarray:
    """Logits of a model of order two."""
    return _logits(seed, *tokens[-2:])


@cache
def _logits(seed: int, *context: int) -> np.ndarray:
    return np.random.default_rng([seed, *context]).standard_normal(VOCAB).astype(np.float32)


def generate(params: SamplingParams, prompt: list[int], count: int, draft: Draft) -> tuple[list[int], list[int]]:
    """``count`` tokens, and the accepted ones of each step."""
    sampler, tokens, accepted = Sampler(params, prompt), list(prompt), []
    while len(tokens) < len(prompt) + count:
        proposal = draft(tokens)
        base = list(tokens)

        def choose(place: int, draft_token: DraftToken | None, base=base, proposal=proposal) -> int:
            logits = model_logits(base + list(proposal.token_ids[:place]))
            tokens.append(sampler.sample(logits, draft_token=draft_token)[0])
            return tokens[-1]

        accepted.append(accepted_count(proposal, choose))
        # As many new tokens as were accepted, and one more.
        assert len(tokens) == len(base) + accepted[-1] + 1
    return tokens[len(prompt) : len(prompt) + count], accepted


def no_draft(tokens: list[int]) -> Proposal:
    return Proposal()


def partly_right(pattern: list[int]) -> Draft:
    """Proposals of which as many tokens as ``pattern`` says are the greedy ones."""
    steps = iter(pattern * 100)

    def draft(tokens: list[int]) -> Proposal:
        right, text = next(steps), list(tokens)
        for place in range(4):
            best = int(model_logits(text).argmax())
            text.append(best if place < right else (best + 1) % VOCAB)
        return Proposal(tuple(text[len(tokens) :]))

    return draft


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_greedy_tokens_are_the_models_own(pattern: list[int]) -> None:
    alone, _ = generate(SamplingParams(), [1, 2], 40, no_draft)
    tokens, accepted = generate(SamplingParams(), [1, 2], 40, partly_right(pattern))
    assert tokens == alone
    assert accepted == (pattern * 100)[: len(accepted)]


@settings(deadline=None, max_examples=examples(20))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(0, 1000))
def test_deterministic_drafts_do_not_change_seeded_tokens(pattern: list[int], seed: int) -> None:
    params = SamplingParams(temperature=0.8, top_k=3, repetition_penalty=1.4, seed=seed)
    assert generate(params, [1, 2], 30, partly_right(pattern))[0] == generate(params, [1, 2], 30, no_draft)[0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.9, top_p=0.8, repetition_penalty=1.7, seed=2),
        pytest.param(
            SamplingParams(temperature=1.2, top_k=3, min_p=0.1, repetition_penalty=0.6, seed=3), marks=pytest.mark.slow
        ),
    ],
)
def test_sampled_drafts_do_not_change_the_joint_distribution(params: SamplingParams) -> None:
    """Three tokens together, against the product of the model's processed distributions; the penalty follows them."""
    rng, runs, prompt = np.random.default_rng(11), examples(6_000), [1, 2]
    counts = np.zeros((VOCAB,) * 3, np.int64)

    def draft(tokens: list[int]) -> Proposal:
        text, rows = list(tokens), []
        for _ in range(2):
            weights = np.exp(model_logits(text, seed=7).astype(np.float64))
            rows.append(weights / weights.sum())
            text.append(int(rng.choice(VOCAB, p=rows[-1])))
        return Proposal(tuple(text[len(tokens) :]), np.array(rows))

    for run in range(runs):
        seeded = SamplingParams(**{**params.__dict__, "seed": run})
        counts[tuple(generate(seeded, prompt, 3, draft)[0])] += 1
    assert chi_square_fits(counts.ravel(), runs * joint(model_logits, params, prompt, 3).ravel())


def test_nothing_follows_the_end_of_a_sequence() -> None:
    calls = []

    def choose(place: int, draft_token: DraftToken | None) -> int | None:
        calls.append((place, None if draft_token is None else draft_token.token))
        return None if place == 1 else 5

    assert accepted_count(Proposal((5, 6, 7)), choose) == 1
    assert calls == [(0, 5), (1, 6)]


def test_proposals_know_their_shape() -> None:
    rows = np.full((3, VOCAB), 0.25)
    proposal = Proposal((1, 2, 3), rows).first(2)
    assert proposal.token_ids == (1, 2) and len(proposal) == 2
    assert proposal.draft_token(2) is None and np.array_equal(proposal.draft_token(1).probabilities, rows[1])
    with pytest.raises(RequestError, match=r"expected probabilities \[2, vocab\]"):
        Proposal((1, 2), rows)
