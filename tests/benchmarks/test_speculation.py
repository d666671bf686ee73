"""The benchmark of speculation measures what it says, on few tokens."""

import pytest

from benchmarks.speculation import SpeculationBenchmarkSettings
from tests.benchmarks.measured import correct


@pytest.mark.slow
def test_the_report_has_both_texts_and_the_counts() -> None:
    settings = SpeculationBenchmarkSettings(
        2, passage=6, passages=5, prompt=18, batches=(3,), new_tokens=12, threads=1, repeats=1
    )
    document = correct("speculation", settings)
    results = document["results"]
    assert [target["limit"] for target in document["targets"]] == [1.5, 0.97]
    for measured in (results["repeats"], results["does not repeat"], results["batches"]["3"]):
        assert measured["tokens_per_row"] >= 1
    assert results["repeats"]["share_predicted"] >= results["does not repeat"]["share_predicted"] >= 0
    assert results["state_bytes_per_draft_token"] > 0
    assert max(map(int, results["rows_by_draft_tokens"])) <= 2
