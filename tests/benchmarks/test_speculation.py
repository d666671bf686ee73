"""The benchmark of speculation measures what it says, on few tokens."""

from benchmarks.speculation import SpeculationBenchmarkSettings, run


def test_the_report_has_both_texts_and_the_counts() -> None:
    report = run(
        SpeculationBenchmarkSettings(tokens=2, passage=6, prompt=18, batches=(3,), new_tokens=12, threads=1, repeats=1)
    )
    assert report.passed and [target.limit for target in report.targets] == [1.5]
    for measured in (report.results["repeats"], report.results["does not repeat"], report.results["batches"]["3"]):
        assert measured["tokens_per_row"] >= 1
    assert report.results["state_bytes_per_candidate"] > 0
    assert max(report.results["rows_by_candidates"]) <= 2
