"""The scheduler benchmark runs, and its gate detects wrong tokens."""

import pytest

from benchmarks.scheduler import CountingResult, SchedulerSettings
from tests.benchmarks.measured import correct, document

SMALL = SchedulerSettings(batch=3, context=20, steps=9, block_size=4, vocab=32, repeats=1)


def test_it_measures_greedy_and_sampled_steps() -> None:
    results = correct("scheduler", SMALL)["results"]
    assert results["host_us"]["repeats"] == results["host_sampled_us"]["repeats"] == 1
    assert min(results["share_ahead" + kind]["median"] for kind in ("", "_sampled", "_mixed")) > 0.8


def test_wrong_tokens_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CountingResult.best_tokens
    monkeypatch.setattr(CountingResult, "best_tokens", lambda self: [token + 1 for token in found(self)])
    printed = document("scheduler", SMALL)
    assert not printed["correct"] and "results" not in printed
