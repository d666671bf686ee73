"""The benchmark of grammar masks runs, and its gates detect a mask that refuses the right token."""

import pytest

pytest.importorskip("llguidance", reason="needs llguidance: pip install '.[serve]'")

import numpy as np

from benchmarks.grammar_masks import GrammarMaskSettings
from hybridge.serve.grammar_tokens import GrammarTokens
from tests.benchmarks.measured import correct, document

SMALL = GrammarMaskSettings(batch=3, steps=6, vocab=2100, step_us=100, sampling_us=10, repeats=1)


def test_it_measures_steps_with_and_without_masks() -> None:
    results = correct("grammar_masks", SMALL)["results"]
    assert set(results["step_us"]) == {"masked", "plain", "ahead"}


def test_masks_that_refuse_a_right_token_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GrammarTokens.mask
    monkeypatch.setattr(GrammarTokens, "mask", lambda self: np.zeros_like(found(self)))
    printed = document("grammar_masks", SMALL)
    assert not printed["correct"] and "results" not in printed
