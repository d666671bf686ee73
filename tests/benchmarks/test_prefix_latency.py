"""The benchmark of the time to the first token runs on both engines, and refuses numbers of a cache that lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import prefix_latency
from benchmarks.prefix_latency import CPU, GPU, PrefixLatencyBenchmark
from benchmarks.prefix_traces import Groups
from hybridge.runtime.engines.paged import PagedEngine
from tests.benchmarks.measured import correct, document
from tests.benchmarks.shapes import TINY

TRACE = Groups("small", 2, 3, 40, 10, 3, 2)
SMALL = PrefixLatencyBenchmark(engines=(CPU,), traces={CPU: TRACE, GPU: TRACE}, states=4, threads=1, model=TINY)


@pytest.mark.parametrize("engine", [CPU, GPU])
def test_it_measures(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, computed = prefix_latency.paged_states, []

    def counted(engine: PagedEngine, tokens: np.ndarray) -> Any:
        computed.append(len(tokens))
        return states(engine, tokens)

    monkeypatch.setattr(prefix_latency, "paged_states", counted)
    settings = replace(SMALL, engines=(engine,), work=str(tmp_path))
    found = correct("prefix_latency", settings)
    assert len(found["gates"]) == 1
    # States that are walked through are the same to the bit, so that the error says nothing of how many were compared.
    assert 1 < len(computed) <= settings.gate_states and min(computed) >= 2
    ways = found["results"][engine]["ways"]
    assert ways["without"]["hit_rate"] == 0 < ways["value"]["hit_rate"]
    assert engine == GPU or [way["same_answers"] for way in ways.values()] == [1.0] * 2
    assert [target["unit"] for target in found["targets"]] == ["x"]


def test_a_cache_that_lies_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    states = prefix_latency.paged_states
    monkeypatch.setattr(prefix_latency, "paged_states", lambda engine, tokens: states(engine, np.roll(tokens, 1)))
    found = document("prefix_latency", SMALL)
    assert not found["correct"] and "results" not in found
