"""Cache managers: routes of layers, rows that are cleared, captured, copied, taken and compacted."""

import dataclasses

import numpy as np
import pytest

import hybridge.runtime.engines.capacity as capacity
from hybridge.artifact.errors import RequestError
from hybridge.runtime.caches import HybridCacheManager, KVCacheManager, MambaCacheManager
from hybridge.runtime.engines.dense import StepInputs
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, ToyEngine, toy_config, toy_logits


def feed(engine: ToyEngine, cache: HybridCacheManager, rows: dict[int, list[int]]) -> np.ndarray:
    """One step of the given tokens; logits [rows, vocab]."""
    counts = np.array([len(rows.get(row, [])) for row in range(cache.rows)], np.int32)
    ids = np.full((cache.rows, counts.max()), 3, np.int64)
    for row, tokens in rows.items():
        ids[row, : len(tokens)] = tokens
    logits = engine.step(StepInputs(ids, counts, np.array(cache.lengths, np.int32)), cache.states).copy()
    for row, tokens in rows.items():
        cache.lengths[row] += len(tokens)
    return logits


def test_routes_lead_to_the_states_of_each_layer() -> None:
    cache = HybridCacheManager(ToyEngine(toy_config(HYBRID)), 3, tokens=5)
    routes = [[(type(r.manager), r.local_index) for r in cache.routes(layer)] for layer in range(len(HYBRID))]
    assert routes == [
        [(MambaCacheManager, 0)],
        [],
        [(KVCacheManager, 0)],
        [(MambaCacheManager, 1)],
        [],
        [(KVCacheManager, 1)],
    ]
    found = (cache.kv.keys(1), cache.kv.values(1), cache.mamba.conv_state(1), cache.mamba.recurrent_state(1))
    shapes = [None if buffer is None else buffer.shape for buffer in found]
    assert shapes == [(3, 1, 96, 2), (3, 1, 96, 2), (3, 1, 3), (3, 1, 1, 2)] and cache.mamba.conv_state(2) is None
    with pytest.raises(IndexError):
        cache.routes(len(HYBRID))


def test_rows_that_move_continue_with_exactly_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 4)
    engine = ToyEngine(toy_config(HYBRID))
    cache = HybridCacheManager(engine, 4, tokens=3)
    feed(engine, cache, {0: [1, 2, 3], 1: [9], 2: [4, 4], 3: [8]})
    mamba, kv = cache.mamba.capture(0), cache.kv.capture(0)
    assert mamba.length == 3 and mamba.nbytes == 2 * 5 * 4 and kv.nbytes == 2 * 2 * 3 * 2 * 4
    cache.reserve(6)
    feed(engine, cache, {0: [50], 1: [51, 52]})
    cache.kv.restore(2, kv)
    cache.mamba.restore(2, mamba)
    cache.clear_states([3])
    cache.copy_row(1, 3)
    other = HybridCacheManager(engine, 1, tokens=12)
    feed(engine, other, {0: list(range(12))})
    cache.take_row(other, 0, 1)
    cache.compact([3, 2, 1])
    assert (cache.rows, cache.states.max_seq, cache.lengths) == (3, 16, [3, 3, 12])
    logits = feed(engine, cache, {0: [7], 1: [8], 2: [9]})
    for row, tokens in enumerate([[9, 51, 52, 7], [1, 2, 3, 8], [*range(12), 9]]):
        np.testing.assert_array_equal(logits[row], toy_logits(engine.config, tokens))
    cache.clear_states()
    np.testing.assert_array_equal(feed(engine, cache, {1: [8]})[1], toy_logits(engine.config, [8]))


def test_a_snapshot_of_another_model_is_refused_before_anything_is_written() -> None:
    engine, other = ToyEngine(toy_config(HYBRID)), ToyEngine(toy_config(PURE_ATTENTION))
    foreign, cache = HybridCacheManager(other, 1), HybridCacheManager(engine, 1)
    feed(other, foreign, {0: [1]})
    feed(engine, cache, {0: [1, 2]})
    with pytest.raises(RequestError, match="belongs to another model"):
        cache.mamba.restore(0, foreign.kv.capture(0))
    good = cache.kv.capture(0)
    with pytest.raises(ValueError, match="read-only"):
        next(iter(good.states.values()))[...] = 0
    wide = {name: array.astype(np.float64) for name, array in good.states.items()}
    with pytest.raises(RequestError, match=r"past_key_0: expected .*float32\[1, 2, 2\], found float64"):
        cache.kv.restore(0, dataclasses.replace(good, states=wide))
    np.testing.assert_array_equal(feed(engine, cache, {0: [3]})[0], toy_logits(engine.config, [1, 2, 3]))
