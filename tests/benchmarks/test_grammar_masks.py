"""The benchmark of grammar masks runs, and its gates detect a mask that refuses the right token."""

from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="needs llguidance: pip install '.[serve]'")

import numpy as np

from benchmarks.grammar_masks import GrammarMaskSettings
from benchmarks.grammar_masks_torch import TorchGrammarMaskSettings
from hybridge.serve.grammar_tokens import GrammarTokens
from tests.benchmarks.measured import correct, document
from tests.benchmarks.shapes import TINY

SMALL = GrammarMaskSettings(batch=3, steps=6, vocab=2100, step_us=100, sampling_us=10, repeats=1)


def test_it_measures_steps_with_and_without_masks() -> None:
    results = correct("grammar_masks", SMALL)["results"]
    assert set(results["step_us"]) == {"masked", "plain", "ahead"}


def test_masks_that_refuse_a_right_token_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GrammarTokens.mask
    monkeypatch.setattr(GrammarTokens, "mask", lambda self: np.zeros_like(found(self)))
    printed = document("grammar_masks", SMALL)
    assert not printed["correct"] and "results" not in printed


@pytest.mark.slow
def test_it_measures_steps_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = {**TINY, "vocab_size": 2100}, {"batch": 3, "steps": 6, "gate_steps": 3, "repeats": 1}
    settings = TorchGrammarMaskSettings("cpu", **sizes, pool_bytes=1 << 24, work=str(tmp_path), model=model)
    assert set(correct("grammar_masks_torch", settings)["results"]["step_us"]) == {"masked", "plain", "ahead"}
    found = GrammarTokens.mask
    monkeypatch.setattr(GrammarTokens, "mask", lambda self: np.roll(found(self), 1))
    assert not document("grammar_masks_torch", settings)["correct"]
