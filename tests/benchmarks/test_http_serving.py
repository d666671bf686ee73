"""The benchmark of the HTTP server runs from end to end on a small size and finds correct results."""

from __future__ import annotations

import pytest

from benchmarks.http_serving import HttpServingSettings
from tests.benchmarks.measured import correct


@pytest.mark.slow
def test_streams_are_compared_with_async_llm() -> None:
    document = correct(
        "http_serving",
        HttpServingSettings(streams=3, new_tokens=5, short=3, many_streams=4, requests=4, threads=1, repeats=1),
    )
    assert set(document["results"]["tokens_per_second"]) == {"AsyncLLM", "HTTP"}
    assert [target["unit"] for target in document["targets"]] == ["x", "x", "us", "x"]
