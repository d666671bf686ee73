"""Tokens sampled through a whole serving loop against the joint distribution of its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from tests.runtime.sampling.chi_square import chi_square_fits
from tests.runtime.serving.toy_loop import answers, make_request
from tests.runtime.speculation.processed import joint
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_logits

PROMPT = [1, 2, 1, 3, 1, 2, 1]


def check_samples(loop: ServingLoop, engine: ToyPagedEngine, params: dict[str, Any], new: int, runs: int) -> None:
    """AssertionError unless the first ``new`` tokens of ``runs`` answers, together, follow the product of the
    written-out distributions."""
    for seed in range(runs):
        # The last token is never a draft token: more than those that are counted.
        loop.add(make_request(PROMPT, new + 2, seed=seed, **params))
    outputs = []
    while loop.busy:
        outputs += loop.step()
    counts = np.zeros((engine.config.vocab_size,) * new, np.int64)
    for tokens in answers(outputs).values():
        counts[tokens[:new]] += 1
    assert counts.sum() == runs
    expected = joint(lambda tokens: toy_logits(engine.config, tokens), SamplingParams(**params), PROMPT, new)
    assert chi_square_fits(counts.ravel(), runs * expected.ravel())
