"""Sampled tokens have the model's own distribution through the whole serving loop, whatever drafts propose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.speculation import DraftRequest, NgramDrafter, Proposal, SpeculationSettings
from tests.runtime.serving.joint_draws import check_samples
from tests.runtime.serving.toy_loop import toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config
from tests.support.effort import examples

VOCAB, MOST, NEW, RUNS = 5, 3, 2, examples(2_400)
PARAMS = {
    "temperature": {"temperature": 0.9},
    "top": {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
    "min_p": {"temperature": 1.1, "min_p": 0.1},
    "penalty": {"temperature": 1.0, "repetition_penalty": 1.6},
    "edits": {
        "temperature": 1.1,
        "repetition_penalty": 1.6,
        "frequency_penalty": 0.7,
        "presence_penalty": -0.4,
        "logit_bias": {1: 0.5, 2: -0.6},
        "allowed_token_ids": [0, 1, 2, 4],
        "logits_processors": [lambda tokens, logits: logits + np.float32(0.3) * (np.arange(VOCAB) == len(tokens))],
    },
}


class Drawing:
    """Samples from its own model and returns the distribution."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(17)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        found = []
        for each in requests:
            tokens, rows = [], []
            for place in range(each.most):
                weights = np.exp(np.random.default_rng([len(each.tokens), place]).standard_normal(VOCAB))
                rows.append(weights)  # not normalised, which is not required
                tokens.append(int(self.rng.choice(VOCAB, p=weights / weights.sum())))
            found.append(Proposal(tuple(tokens), np.array(rows)))
        return found

    def forget(self, sequence: int) -> None:
        pass


def drafter(kind: str) -> Drawing | NgramDrafter | ModelDrafter:
    if kind == "model":
        same = ToyPagedEngine(paged_config(HYBRID, vocab=VOCAB), max_rows=5)
        return ModelDrafter(same, VOCAB, 12, 40, MOST)
    return NgramDrafter(1, 3) if kind == "ngram" else Drawing()


@pytest.mark.parametrize(
    ("kind", "filters", "adaptive"),
    [
        # On push with the same filters below or in test_sampled_drafts, or similar ones.
        *(
            pytest.param("draws", filters, adaptive, marks=pytest.mark.slow)
            for filters, adaptive in (
                ("temperature", False),
                ("top", False),
                ("penalty", False),
                ("min_p", False),
                ("penalty", True),
            )
        ),
        ("draws", "edits", False),
        ("draws", "temperature", True),
        ("ngram", "edits", False),
        ("model", "top", False),
    ],
)
def test_tokens_together_follow_the_model(kind: str, filters: str, adaptive: bool) -> None:
    """The first tokens of all answers against the product of the written-out distributions."""
    speculation = SpeculationSettings(MOST, drafter(kind), adaptive=adaptive, draft_token_cost=0.1)
    loop, engine = toy_loop(HYBRID, vocab=VOCAB, speculation=speculation, prefix_cache="radix")
    check_samples(loop, engine, PARAMS[filters], NEW, RUNS)
    metrics = loop.speculation
    assert metrics is not None and RUNS / 10 < metrics.accepted < 0.9 * metrics.proposed
