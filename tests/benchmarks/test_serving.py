"""The serving benchmark runs from end to end on small sizes and finds correct results."""

from benchmarks.serving import ServingBenchmarkSettings, run


def test_it_serves_in_three_ways() -> None:
    document = run(ServingBenchmarkSettings(requests=3, batch=2, prompt=5, new_tokens=3, repeats=1)).to_json()
    assert document["correct"] and len(document["results"]["tokens_per_second"]) == 3
    assert set(document["results"]["latency_ms"]) == {
        "first_token_p50",
        "first_token_p99",
        "between_tokens_p50",
        "between_tokens_p99",
    }
