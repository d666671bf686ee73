"""Filters keep exactly the tokens that transformers' logits processors keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.sampling.edits import edited_rows
from hybridge.runtime.sampling.history import AnswerHistory
from hybridge.runtime.sampling.token_sampling import surviving_tokens
from tests.support.effort import examples

transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
torch = pytest.importorskip("torch", reason="transformers' processors need torch")
process = transformers.generation.logits_process

# Ours are float32 exponentials, the oracle's float64: smaller probabilities count as zero.
UNDERFLOW = 1e-30


def oracle_probabilities(logits: np.ndarray, seen: list[int], params: SamplingParams) -> np.ndarray:
    """Softmax [vocab] after transformers' processors, in the order in which its generate applies them."""
    processors = process.LogitsProcessorList()
    if params.repetition_penalty != 1:
        processors.append(process.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(process.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(process.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(process.TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(process.MinPLogitsWarper(params.min_p))
    scores = processors(torch.tensor([seen]), torch.tensor(logits[None].astype(np.float64)))
    return torch.softmax(scores, dim=-1)[0].numpy()


def our_probabilities(logits: np.ndarray, seen: list[int], params: SamplingParams) -> np.ndarray:
    scores = edited_rows(logits[None], [AnswerHistory(params, seen).edits(logits.size)])[0]
    ids, weights = surviving_tokens(scores, float(scores.max()), params)
    probabilities = np.zeros(logits.size)
    probabilities[slice(None) if ids is None else ids] = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    return probabilities


def assert_same_distribution(logits: np.ndarray, seen: list[int], params: SamplingParams) -> None:
    expected, actual = oracle_probabilities(logits, seen, params), our_probabilities(logits, seen, params)
    np.testing.assert_array_equal(np.flatnonzero(actual > UNDERFLOW), np.flatnonzero(expected > UNDERFLOW))
    # float32 logits and exponentials: a few units in the last place.
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-12)


BASE = {"temperature": 0.8}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.7},
        {"temperature": 0.05},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 333},
        {"top_k": 5000},
        {"top_p": 0.01},
        {"top_p": 0.5},
        {"top_p": 0.9999},
        {"min_p": 0.02},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [333, 4099])
def test_distribution_equals_transformers(changes: dict[str, float], vocab: int) -> None:
    rng = np.random.default_rng(3)
    logits = (3 * rng.standard_normal(vocab)).astype(np.float32)
    assert_same_distribution(logits, [5, 1, 5, vocab - 1, 17], SamplingParams(**{**BASE, **changes}))  # type: ignore[arg-type]


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 200),
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 210),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    penalty=st.floats(0.5, 2.0),
)
def test_any_combination_equals_transformers(
    seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (2 * rng.standard_normal(vocab)).astype(np.float32)
    seen = rng.integers(0, vocab, 5).tolist()
    params = SamplingParams(temperature, top_k, top_p, min_p, penalty)
    expected, actual = oracle_probabilities(logits, seen, params), our_probabilities(logits, seen, params)
    # Tokens exactly at a threshold may fall on either side in float32: they may carry no more than rounding's share.
    differs = (expected > UNDERFLOW) != (actual > UNDERFLOW)
    assert differs.sum() <= 1
    if not differs.any():
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-12)


def test_ties_with_the_kth_token_stay() -> None:
    logits = np.array([1.0, 3.0, 3.0, 3.0, 0.0], np.float32)
    ids, _ = surviving_tokens(logits, 3.0, SamplingParams(temperature=1.0, top_k=2))
    assert ids is not None and ids.tolist() == [1, 2, 3]
    assert_same_distribution(logits, [0], SamplingParams(temperature=1.0, top_k=2))


def test_masked_tokens_never_survive() -> None:
    logits = np.full(64, -np.inf, np.float32)
    logits[[3, 9]] = [0.5, 0.25]
    for params in (SamplingParams(1.0), SamplingParams(1.0, top_p=0.99999), SamplingParams(1.0, top_k=10)):
        np.testing.assert_array_equal(np.flatnonzero(our_probabilities(logits, [0], params)), [3, 9])


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = np.array([0.0, 2.0, 1.0], np.float32)
    ids, weights = surviving_tokens(logits, 2.0, SamplingParams(temperature=1e-300))
    assert ids is None and weights.tolist() == [0.0, 1.0, 0.0]
