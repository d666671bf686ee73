"""The sampler samples from the filtered distribution, repeats with a seed and never trusts non-finite logits."""

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.sampling.logprobs import token_logprobs
from hybridge.runtime.sampling.sampler import block_size, draw, surviving_tokens
from tests.runtime.sampling.chi_square import chi_square_fits


def random_logits(vocab: int, seed: int = 0) -> np.ndarray:
    return (2 * np.random.default_rng(seed).standard_normal(vocab)).astype(np.float32)


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    assert Sampler(SamplingParams()).sample(np.array([0, 2, 2, 1], np.float32)) == (1, None)


def test_greedy_applies_the_repetition_penalty_to_prompt_and_output() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), prompt=[0])
    logits = np.array([4.0, 3.0, 2.5, -1.0], np.float32)
    # Token 0 counts 2.0 from the start; token 1 counts 1.5 once sampled, token 2 counts 1.25.
    assert [sampler.sample(logits)[0] for _ in range(3)] == [1, 2, 0]
    assert logits.tolist() == [4.0, 3.0, 2.5, -1.0]


@pytest.mark.parametrize(
    ("vocab", "params"),
    [
        (11, SamplingParams(temperature=1.3)),
        (11, SamplingParams(temperature=1.0, top_k=4)),
        (300, SamplingParams(temperature=0.7, top_p=0.8, min_p=0.02)),
        # Large enough that a draw chooses a block first; most of the mass lies in few tokens of different blocks.
        (5000, SamplingParams(temperature=0.5)),
    ],
)
def test_samples_follow_the_distribution(vocab: int, params: SamplingParams) -> None:
    """Pearson's chi-square over 20,000 samples stays below the 1 - 1e-6 quantile (Wilson-Hilferty approximation)."""
    logits, samples = random_logits(vocab), 20_000
    sampler = Sampler(params.__class__(**{**params.__dict__, "seed": 7}))
    counts = np.bincount([sampler.sample(logits)[0] for _ in range(samples)], minlength=vocab)
    ids, weights = surviving_tokens(logits, float(logits.max()), params)
    expected = np.zeros(vocab)
    expected[slice(None) if ids is None else ids] = samples * weights.astype(np.float64) / weights.sum(dtype=np.float64)
    assert chi_square_fits(counts, expected)


def test_no_draw_falls_on_a_weight_of_zero_where_blocks_meet() -> None:
    """Sums of a block in two orders differ: a draw at its end may pass all of its weights."""
    size = block_size(4096)
    for seed in range(20):
        weights = np.exp(8 * np.random.default_rng(seed).standard_normal(4096)).astype(np.float32)
        weights[::size] = weights[size - 1 :: size] = 0
        ends = np.cumsum(np.add.reduceat(weights, np.arange(0, 4096, size), dtype=np.float64))
        for end in ends[:-1] / ends[-1]:
            for uniform in (np.nextafter(end, 0), end, np.nextafter(end, 1)):
                assert weights[draw(weights, float(uniform))] > 0


def test_a_seed_repeats_and_another_differs() -> None:
    logits = random_logits(500)

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler.sample(logits)[0] for _ in range(40)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(None) != run(None)


def test_a_request_samples_the_same_tokens_in_any_batch() -> None:
    logits = random_logits(50)
    alone = Sampler(SamplingParams(temperature=1.0, seed=3))
    expected = [alone.sample(logits)[0] for _ in range(20)]
    sampler, neighbour = (Sampler(SamplingParams(temperature=1.0, seed=seed)) for seed in (3, 4))
    mixed = []
    for _ in range(20):
        neighbour.sample(logits)
        mixed.append(sampler.sample(logits)[0])
        neighbour.sample(logits)
    assert mixed == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_logits_are_an_engine_error(temperature: float, bad: float) -> None:
    logits = random_logits(9)
    logits[4] = bad
    with pytest.raises(EngineError, match="finite logits"):
        Sampler(SamplingParams(temperature=temperature)).sample(logits)
    with pytest.raises(EngineError, match="finite logits"):
        Sampler(SamplingParams(temperature=temperature)).sample(np.full(9, -np.inf, np.float32))


def test_logprobs_are_log_softmax_of_the_raw_logits() -> None:
    logits = random_logits(1000, 5) + np.float32(40)
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    params = SamplingParams(temperature=2.0, top_k=3, repetition_penalty=5.0, logprobs=4, seed=0)
    token, logprobs = Sampler(params, np.argsort(-expected)[:50].tolist()).sample(logits)
    assert logprobs is not None and logprobs.token_id == token
    np.testing.assert_allclose(logprobs.logprob, expected[token], atol=2e-5)
    assert [i for i, _ in logprobs.top] == np.argsort(-expected)[:4].tolist()
    np.testing.assert_allclose([p for _, p in logprobs.top], np.sort(expected)[::-1][:4], atol=2e-5)


def test_logprobs_list_equals_by_id_and_stops_at_the_vocabulary() -> None:
    result = token_logprobs(np.zeros(3, np.float32), 2, 10)
    assert [i for i, _ in result.top] == [0, 1, 2]
    np.testing.assert_allclose(result.logprob, -np.log(3), atol=1e-6)
    assert token_logprobs(np.zeros(3, np.float32), 1, 0).top == ()
