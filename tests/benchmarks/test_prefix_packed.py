"""The benchmark of states in 8 bits runs on small traces, in as many bytes for each kind."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.prefix_cache import PrefixPackedBenchmark
from benchmarks.prefix_replay import CostEngine
from benchmarks.prefix_runs import replay_on_engine
from benchmarks.prefix_traces import Groups
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from tests.benchmarks.measured import correct, document

TRACE = Groups("groups", 5, 4, 160, 20, 3, 2)
SMALL = PrefixPackedBenchmark(((TRACE, 2),), ((Groups("small", 2, 3, 40, 10, 3, 2), 2),), threads=1)


def test_it_measures() -> None:
    results = correct("prefix_packed", SMALL)["results"]
    (full,), (scaled,) = results["cost_model"], results["cpu"]
    for each, ways in ((full, 3), (scaled, 4)):
        hits = {way: found["hit_rate"] for way, found in each["ways"].items()}
        assert len(hits) == ways and hits["without"] == 0 < hits["int8"] and each["ways"]["exact"]["other_answers"] == 0
        assert each is scaled or hits["int8"] > hits["exact"], "more states than in the bytes of two"


def test_all_kinds_have_the_same_bytes() -> None:
    trace, pools = TRACE.trace(), {}
    for kind in ("exact", "int8", "fp8"):
        engine = CostEngine(trace.at_a_time, 256, trace.longest)
        pools[kind] = replay_on_engine(engine, trace, PrefixCacheSettings(states=kind), 16)[1].pools
    assert pools["exact"].sizes.num_slots == 2 + 16
    assert pools["int8"].sizes.num_packed == pools["fp8"].sizes.num_packed == 62
    assert all(abs(each.pool_bytes - pools["exact"].pool_bytes) < each.slot_bytes for each in pools.values())


def test_wrong_answers_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CostEngine.step
    monkeypatch.setattr(CostEngine, "step", lambda self, inputs: np.roll(step(self, inputs), self.tokens % 7, axis=1))
    found = document("prefix_packed", SMALL)
    assert not found["correct"] and "results" not in found
