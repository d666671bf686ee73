"""A draft token changes how a token is sampled, never its distribution."""

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling import DraftToken, Sampler, SamplingParams
from hybridge.runtime.sampling.token_sampling import surviving_tokens
from tests.runtime.sampling.chi_square import chi_square_fits

VOCAB = 13


def logits_of(seed: int) -> np.ndarray:
    return (1.5 * np.random.default_rng(seed).standard_normal(VOCAB)).astype(np.float32)


def target(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    ids, weights = surviving_tokens(logits, float(logits.max()), params)
    p = np.zeros(VOCAB)
    p[slice(None) if ids is None else ids] = weights.astype(np.float64)
    return p / p.sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.6, top_k=5, seed=4),
        SamplingParams(temperature=1.4, top_p=0.7, min_p=0.05, seed=5),
    ],
)
@pytest.mark.parametrize("kind", ["other", "same", "far", "point"])
def test_samples_with_draft_tokens_follow_the_target(params: SamplingParams, kind: str) -> None:
    logits, rng, samples = logits_of(1), np.random.default_rng(8), 6_000
    p = target(logits, params)
    q = {"other": target(logits_of(2), SamplingParams(temperature=1.0)), "same": p, "point": np.eye(VOCAB)[4]}.get(
        kind, np.where(p > 0, 1e-3, 1.0)
    )
    q = q / q.sum()
    sampler, kept = Sampler(params), 0
    counts = np.zeros(VOCAB, np.int64)
    for token in rng.choice(VOCAB, samples, p=q):
        # q is given in another scale: it need not be normalised.
        chosen, _ = sampler.sample(logits, draft_token=DraftToken(int(token), (3 * q).astype(np.float64)))
        counts[chosen] += 1
        kept += chosen == token
    assert chi_square_fits(counts, samples * p)
    # Rejection keeps sum(min(p, q)) of the guesses, the most that any coupling can.
    overlap = np.minimum(p, q).sum()
    assert abs(kept / samples - overlap) < 5 * np.sqrt(overlap * (1 - overlap) / samples) + 1e-6


def test_a_deterministic_draft_token_changes_no_sample() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.3, seed=9)
    plain, guessing = Sampler(params, [1, 2]), Sampler(params, [1, 2])
    for step in range(50):
        assert (
            plain.sample(logits_of(step))[0]
            == guessing.sample(logits_of(step), draft_token=DraftToken(step % VOCAB))[0]
        )


def test_greedy_ignores_draft_probabilities() -> None:
    logits = logits_of(6)
    q = np.full(VOCAB, 1 / VOCAB)
    sampler = Sampler(SamplingParams(repetition_penalty=1.1))
    assert sampler.sample(logits, draft_token=DraftToken(int(logits.argmin()), q))[0] == int(logits.argmax())


def test_a_draft_token_without_probability_is_refused() -> None:
    with pytest.raises(RequestError, match="found token 2 of 3 without"):
        DraftToken(2, np.array([0.5, 0.5, 0.0]))
    with pytest.raises(RequestError, match="found token 3 of 3"):
        DraftToken(3, np.ones(3))
    with pytest.raises(RequestError, match="finite, non-negative"):
        Sampler(SamplingParams(temperature=1.0)).sample(logits_of(1), draft_token=DraftToken(1, np.full(VOCAB, np.inf)))
    with pytest.raises(RequestError, match="finite, non-negative"):
        Sampler(SamplingParams(temperature=1.0)).sample(logits_of(1), draft_token=DraftToken(1, np.arange(VOCAB) - 0.5))
