"""The sampler samples from the filtered distribution, repeats with a seed and never trusts non-finite logits."""

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling import Sampler, SamplingParams, best_tokens
from hybridge.runtime.sampling.logprobs import token_logprobs
from hybridge.runtime.sampling.random_words import RandomWords
from hybridge.runtime.sampling.token_sampling import block_size, draw, surviving_tokens
from hybridge.runtime.sampling.weights import exponentials, whole_weights
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
        pytest.param(11, SamplingParams(temperature=1.3), marks=pytest.mark.slow),
        (11, SamplingParams(temperature=1.0, top_k=4)),
        pytest.param(300, SamplingParams(temperature=0.7, top_p=0.8, min_p=0.02), marks=pytest.mark.slow),
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


@pytest.mark.parametrize("count", [1, 63, 65, 1000, 4096])
def test_each_whole_number_below_the_sum_draws_the_token_that_it_falls_on(count: int) -> None:
    rng, size = np.random.default_rng(count), block_size(count)
    weights = np.exp(-9 * rng.random(count)).astype(np.float32)
    weights[size - 1 :: size] = 0
    weights[0] = 1
    running = np.cumsum([round(float(weight) * 2**40) for weight in weights])
    for edge in running[:: max(1, count // 50)].tolist():
        for target in (edge - 1, edge):
            if 0 <= target < running[-1]:
                # The smallest word that maps to the target.
                word = -(-(target << 64) // int(running[-1]))
                assert draw(weights, word) == int((running <= target).sum())


def test_exponentials_are_those_of_float64() -> None:
    """Over the whole range, to the last place of float32."""
    x = -np.linspace(0, 87, 300_001).astype(np.float32)
    found = exponentials(x, np.float32(0), np.float32(1))
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7)
    assert found[0] == 1 and whole_weights(found[:1]).tolist() == [1 << 40]
    gone = np.array([-88.1, -1e30, -np.inf], np.float32)
    assert not exponentials(gone, np.float32(0), np.float32(1)).any()
    assert not exponentials(gone, np.float32(3e38), np.float32(1e6)).any()


@pytest.mark.parametrize("seed", [0, 7, 2**64 + 5, 2**128 - 1])
def test_random_words_are_philox_of_seed_and_position(seed: int) -> None:
    """The published algorithm (Philox4x64-10), written out; positions may come in any order."""
    words, mask = RandomWords(seed), 2**64 - 1
    for position in (0, 1, 63, 64, 200, 3, 10**12):
        c, key = [position + 1, 0, 0, 0], [seed & mask, seed >> 64]
        for _ in range(10):
            low, high = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
            c = [(high >> 64) ^ c[1] ^ key[0], high & mask, (low >> 64) ^ c[3] ^ key[1], low & mask]
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        assert [words.at(position, word) for word in range(3)] == c[:3]


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


def test_the_best_tokens_of_rows_are_those_of_finite_logits() -> None:
    inf, nan = np.inf, np.nan
    rows = [[0, 2, 2], [-inf, -inf, 1], [-inf, -inf, -inf], [3, nan, 4], [1, inf, 0]]
    assert best_tokens(np.array(rows, np.float32)) == [1, 2, None, None, None]


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


def test_logprobs_of_logits_that_are_far_apart() -> None:
    result = token_logprobs(np.array([-3e4, 100, 104], np.float32), 0, 2)
    normaliser = 104 + np.log1p(np.exp(-4.0))
    np.testing.assert_allclose(result.logprob, -3e4 - normaliser, rtol=1e-9)
    np.testing.assert_allclose([p for _, p in result.top], [104 - normaliser, 100 - normaliser], rtol=1e-6)


def test_logprobs_list_equals_by_id_and_stops_at_the_vocabulary() -> None:
    result = token_logprobs(np.zeros(3, np.float32), 2, 10)
    assert [i for i, _ in result.top] == [0, 1, 2]
    np.testing.assert_allclose(result.logprob, -np.log(3), atol=1e-6)
    assert token_logprobs(np.zeros(3, np.float32), 1, 0).top == ()
