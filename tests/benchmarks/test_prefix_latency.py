"""The benchmark of the time to the first token runs on both engines, and refuses numbers of a cache that lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import prefix_latency
from benchmarks.prefix_latency import CPU, GPU, PrefixLatencyBenchmark, run
from benchmarks.prefix_traces import Groups
from tests.benchmarks.shapes import TINY

TRACE = Groups("small", 2, 3, 40, 10, 3, 2)
SMALL = PrefixLatencyBenchmark(engines=(CPU,), traces={CPU: TRACE, GPU: TRACE}, states=4, threads=1, shape=TINY)


@pytest.mark.parametrize("engine", [CPU, GPU])
def test_it_measures(engine: str, tmp_path: Path) -> None:
    document = run(replace(SMALL, engines=(engine,), device="cpu", work=str(tmp_path))).to_json()
    assert document["correct"] and [gate["value"] > 0 for gate in document["gates"]] == [True]
    ways = document["results"][engine]["ways"]
    assert ways["without"]["hit_rate"] == 0 < ways["value"]["hit_rate"]
    assert engine == GPU or [way["same_answers"] for way in ways.values()] == [1.0] * 2
    assert [target["unit"] for target in document["targets"]] == ["x"]


def test_a_cache_that_lies_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    states = prefix_latency.paged_states
    monkeypatch.setattr(prefix_latency, "paged_states", lambda engine, tokens: states(engine, np.roll(tokens, 1)))
    document = run(SMALL).to_json()
    assert not document["correct"] and "results" not in document
