"""The scheduler benchmark runs, and its gate sees wrong tokens."""

import pytest

from benchmarks.scheduler import CountingResult, SchedulerSettings, run

SMALL = SchedulerSettings(batch=3, context=20, steps=9, block_size=4, vocab=32, repeats=1)


def test_it_measures_all_parts() -> None:
    document = run(SMALL).to_json()
    assert document["correct"] and document["results"]["host_us"]["repeats"] == 1
    assert set(document["results"]["parts_us"]) == {"plan", "pack", "commit", "beside the device"}


def test_wrong_tokens_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CountingResult.best_tokens
    monkeypatch.setattr(CountingResult, "best_tokens", lambda self: [token + 1 for token in found(self)])
    report = run(SMALL)
    assert not report.passed and not report.results
