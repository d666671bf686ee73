"""Pools fit their budget, hold at least one sequence, and report their memory."""

import pytest

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.runtime.blocks import CacheNeeds
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.pools import ServingShape, memory_budget, pools_in
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config

SHAPE = ServingShape(max_rows=4, max_tokens=32, max_seq_len=96, block_size=4)
# 24 blocks of 32 bytes, one more for a copy, and a slot of 16.
EACH = 25 * 32 + 16


def engine_of(layers) -> ToyPagedEngine:
    return ToyPagedEngine(paged_config(layers), max_tokens=32, max_rows=4)


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA])
@pytest.mark.parametrize("budget", [EACH, EACH + 1, EACH + 40, 3 * EACH // 2, 3 * EACH, 100 * EACH])
def test_pools_fill_the_budget_and_hold_one_sequence(layers, budget):
    engine = engine_of(layers)
    needs = CacheNeeds.of_model(engine.config)
    report = pools_in(engine, needs, SHAPE, budget)
    assert report.pool_bytes <= budget
    assert report.sizes.num_blocks >= 25 * needs.kv and report.sizes.num_slots >= needs.state
    assert report.sizes.num_slots <= 4 and report.sizes.num_blocks <= 100
    assert ServingLoop(engine, ServingSettings(4, memory_bytes=budget), (), None).pools == report


def test_too_little_memory_is_refused_with_the_amount_needed():
    engine = engine_of(HYBRID)
    with pytest.raises(EngineError, match=f"at least {EACH} bytes .* 96 tokens, found {EACH - 1}"):
        pools_in(engine, CacheNeeds(True, True), SHAPE, EACH - 1)


def test_the_report_says_where_the_memory_went():
    report = pools_in(engine_of(HYBRID), CacheNeeds(True, True), SHAPE, 1 << 30)
    assert str(report) == "weights 0.0 MiB, KV 0.0 MiB (100 blocks, 400 tokens), states 0.0 MiB (4 slots)"


def test_on_a_device_the_largest_step_runs_before_memory_is_counted(monkeypatch):
    engine = engine_of(HYBRID)
    readings = iter([9000, 5000])
    monkeypatch.setattr(engine, "free_memory", lambda: next(readings))
    assert memory_budget(engine, SHAPE, None, 0.5) == 2500
    assert (engine.steps, engine.tokens) == (1, 32)


def test_a_cpu_takes_what_all_rows_can_use():
    assert memory_budget(engine_of(HYBRID), SHAPE, None, 0.5) == 4 * EACH


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rows": 5}, "max_rows: expected at most the engine's 4, found 5"),
        ({"max_tokens": 33}, "max_tokens: expected at most the engine's 32"),
        ({"max_seq_len": 97}, "max_seq_len: expected at most the engine's 96"),
        ({"block_size": 0}, "block_size: expected an integer of at least 1, found 0"),
        ({"memory_utilization": 0}, "memory_utilization: expected above 0"),
        ({"memory_utilization": "all"}, "memory_utilization: expected above 0"),
        ({"swap_bytes": -1}, "swap_bytes: expected an integer of at least 0, found -1"),
        ({"policy": "priority"}, "policy: expected a Policy"),
        ({"speculation": "ngram"}, "speculation: expected SpeculationSettings"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        ServingLoop(engine_of(HYBRID), ServingSettings(**settings), (), None)
