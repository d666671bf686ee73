"""Draft tokens sampled with a request's filters, against the filters written out."""

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.sampling import Sampler, SamplingParams
from tests.runtime.sampling.chi_square import chi_square_fits
from tests.runtime.speculation.processed import processed

SAMPLES = 6_000


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, seed=3),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.9, seed=4),
        SamplingParams(temperature=1.1, min_p=0.2, seed=5),
    ],
)
def test_draft_tokens_are_sampled_from_their_stated_distribution(params: SamplingParams) -> None:
    logits = (1.5 * np.random.default_rng(1).standard_normal(13)).astype(np.float32)
    expected, sampler, given = processed(logits, (), (), params), Sampler(params), logits.copy()
    counts = np.zeros(13, np.int64)
    for _ in range(SAMPLES):
        draft_token = sampler.sample_draft_token(given)
        counts[draft_token.token] += 1
    assert draft_token.probabilities is not None and sampler.is_random
    np.testing.assert_allclose(draft_token.probabilities / draft_token.probabilities.sum(), expected, atol=1e-6)
    assert chi_square_fits(counts, SAMPLES * expected)
    np.testing.assert_array_equal(given, logits)


def test_draft_tokens_use_the_requests_random_numbers_and_leave_no_trace() -> None:
    logits = np.random.default_rng(2).standard_normal(13).astype(np.float32)
    params = SamplingParams(temperature=1.0, repetition_penalty=5.0, seed=7)
    guessing, other = Sampler(params), Sampler(params)
    assert len({guessing.sample_draft_token(logits).token for _ in range(40)}) > 3
    # Nothing was seen, so that the penalty is for tokens of the request alone.
    assert [guessing.sample(logits)[0] for _ in range(20)] == [other.sample(logits)[0] for _ in range(20)]
    with pytest.raises(EngineError, match="expected finite logits"):
        guessing.sample_draft_token(np.full(13, np.nan, np.float32))
    assert not Sampler(SamplingParams()).is_random
