"""Sampling many rows together gives the same bits as sampling each alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.sampling.rows import sample_rows
from tests.runtime.sampling.filter_cases import FILTERS
from tests.support.effort import examples, sample


def both(rows: list[dict], logits: np.ndarray, rounds: int) -> None:
    """Compare ``rounds`` samples of all rows together with those of each row alone."""
    alone = [Sampler(SamplingParams(**params), (1, 2)) for params in rows]
    together = [Sampler(SamplingParams(**params), (1, 2)) for params in rows]
    for shift in range(rounds):
        moved = np.roll(logits, shift, axis=1)
        before = moved.copy()
        found = sample_rows([sampler.draw(moved.shape[1]) for sampler in together], moved)
        np.testing.assert_array_equal(moved, before)
        for sampler, other, row, result in zip(alone, together, moved, found, strict=True):
            try:
                expected = sampler.sample(row)
            except EngineError as error:
                assert isinstance(result, EngineError) and str(result) == str(error)
            else:
                assert result == expected
                other.record(expected[0])


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize(
    "vocab", sample((1, 61, 64, 65, 1000, 1024, 1025, 3001, 40_000), on_push=(1, 61, 64, 65, 1024, 3001))
)
def test_rows_of_equal_filters(vocab: int, filters: dict) -> None:
    rng = np.random.default_rng(vocab)
    spread = np.array([[0.1], [1], [4], [30]] * 4, np.float32)
    logits = (spread * rng.standard_normal((16, vocab))).astype(np.float32)
    rows = [{"temperature": 0.05 + 0.21 * i, "seed": i, **filters} for i in range(16)]
    both(rows, logits, 3 if vocab > 10_000 else 20)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_ties_infinities_and_nan(filters: dict) -> None:
    rng = np.random.default_rng(5)
    logits = rng.integers(-2, 3, (12, 300)).astype(np.float32)  # many tokens tie
    logits[1, ::3] = -np.inf
    logits[2, :] = -np.inf
    logits[3, 7] = np.nan
    logits[4, 9] = np.inf
    logits[5, 1:] = -np.inf
    logits[6, :] = 0
    logits[7, :299] = -1e30
    rows = [{"temperature": [1e-9, 0.7, 1e9][i % 3], "seed": 3 * i, **filters} for i in range(12)]
    both(rows, logits, 10)


def test_one_greedy_row_among_rows_of_equal_filters() -> None:
    logits = (3 * np.random.default_rng(1).standard_normal((6, 130))).astype(np.float32)
    both([{"temperature": 0.0 if i == 3 else 0.8, "seed": i} for i in range(6)], logits, 4)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*FILTERS, {"repetition_penalty": 1.4}, {"logprobs": 3}]),
            st.sampled_from([0.0, 0.3, 1.0, 2.5]),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=24,
    ),
    st.sampled_from([17, 130, 1100]),
    st.integers(0, 1000),
)
def test_any_mixture(rows: list, vocab: int, seed: int) -> None:
    logits = (3 * np.random.default_rng(seed).standard_normal((len(rows), vocab))).astype(np.float32)
    both([{"temperature": t, "seed": s, **filters} for filters, t, s in rows], logits, 4)
