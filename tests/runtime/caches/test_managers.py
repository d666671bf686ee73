"""Cache managers: routing of layers, clearing, and capture and restore of one row with its exact length."""

import dataclasses

import numpy as np
import pytest

import hybridge.runtime.caches.hybrid
from hybridge.artifact.errors import RequestError
from hybridge.runtime.caches import HybridCacheManager, KVCacheManager, MambaCacheManager
from hybridge.runtime.caches.hybrid import capacity_for
from hybridge.runtime.engines.base import StepInputs
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA, ToyEngine, toy_config, toy_logits

ALL = pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=["hybrid", "attention", "mamba"])


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


def test_routes_lead_to_the_manager_and_local_index_of_each_layer() -> None:
    cache = HybridCacheManager(ToyEngine(toy_config(HYBRID)), 1)
    routes = [cache.route(layer) for layer in range(len(HYBRID))]
    found = [None if r is None else (type(r.manager), r.local_index) for r in routes]
    assert found == [
        (MambaCacheManager, 0),
        None,
        (KVCacheManager, 0),
        (MambaCacheManager, 1),
        None,
        (KVCacheManager, 1),
    ]
    for bad in (-1, len(HYBRID)):
        with pytest.raises(IndexError):
            cache.route(bad)


def test_routed_buffers_have_the_layer_shapes() -> None:
    cache = HybridCacheManager(ToyEngine(toy_config(HYBRID)), 3, tokens=5)
    assert cache.kv.keys(1).shape == cache.kv.values(1).shape == (3, 1, 96, 2)
    conv, recurrent = cache.mamba.conv_state(1), cache.mamba.recurrent_state(1)
    assert conv is not None and recurrent is not None
    assert (conv.shape, recurrent.shape) == ((3, 1, 3), (3, 1, 1, 2))


def test_a_layer_may_have_only_a_conv_state() -> None:
    config = toy_config(("short_conv",))
    inputs = tuple(b for b in config.bindings.inputs if not b.name.startswith("recurrent"))
    engine = ToyEngine(dataclasses.replace(config, bindings=dataclasses.replace(config.bindings, inputs=inputs)))
    cache = HybridCacheManager(engine, 1)
    assert cache.mamba.conv_state(0) is not None and cache.mamba.recurrent_state(0) is None
    assert list(cache.capture(0).mamba.states) == ["conv_state_0"]


@ALL
def test_a_restored_row_continues_as_the_captured_one_did(layers: tuple[str, ...]) -> None:
    engine = ToyEngine(toy_config(layers))
    cache = HybridCacheManager(engine, 3)
    feed(engine, cache, {0: [1, 2, 3], 1: [9], 2: [4, 4]})
    snapshot = cache.capture(0)
    feed(engine, cache, {0: [50], 1: [51, 52]})
    cache.restore(2, snapshot)
    assert cache.lengths == [4, 3, 3]
    logits = feed(engine, cache, {0: [7], 1: [7], 2: [8]})
    for row, tokens in enumerate([[1, 2, 3, 50, 7], [9, 51, 52, 7], [1, 2, 3, 8]]):
        np.testing.assert_array_equal(logits[row], toy_logits(engine.config, tokens))


@ALL
def test_clearing_starts_rows_again_and_leaves_the_others(layers: tuple[str, ...]) -> None:
    engine = ToyEngine(toy_config(layers))
    cache = HybridCacheManager(engine, 2)
    feed(engine, cache, {0: [1, 2], 1: [3]})
    cache.clear_states([0])
    logits = feed(engine, cache, {0: [5], 1: [6]})
    np.testing.assert_array_equal(logits[0], toy_logits(engine.config, [5]))
    np.testing.assert_array_equal(logits[1], toy_logits(engine.config, [3, 6]))
    cache.clear_states()
    assert cache.lengths == [0, 0]
    np.testing.assert_array_equal(feed(engine, cache, {1: [8]})[1], toy_logits(engine.config, [8]))


def test_recurrent_states_start_at_zero_and_are_zero_after_clearing() -> None:
    engine = ToyEngine(toy_config())
    cache = HybridCacheManager(engine, 2)
    for fed in (False, True):
        if fed:
            feed(engine, cache, {0: [1], 1: [2, 3]})
            cache.mamba.clear_states()
        for layer in range(cache.mamba.num_layers):
            for state in (cache.mamba.conv_state(layer), cache.mamba.recurrent_state(layer)):
                assert state is not None and not any(state.read_row(row).any() for row in range(2))


@ALL
def test_snapshots_are_frozen_and_count_their_bytes(layers: tuple[str, ...]) -> None:
    engine = ToyEngine(toy_config(layers))
    cache = HybridCacheManager(engine, 1)
    feed(engine, cache, {0: [1, 2, 3]})
    snapshot = cache.capture(0)
    attention, mamba = layers.count("attention"), layers.count("mamba")
    # Per attention layer 2 caches x 3 tokens x 2 numbers, per recurrent layer 3 + 2 numbers, 4 bytes each.
    assert (snapshot.kv.nbytes, snapshot.mamba.nbytes) == (attention * 2 * 3 * 2 * 4, mamba * 5 * 4)
    assert snapshot.nbytes == snapshot.kv.nbytes + snapshot.mamba.nbytes and snapshot.length == 3
    for part in (snapshot.kv, snapshot.mamba):
        for array in part.states.values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(TypeError):
            part.states["x"] = np.zeros(1)  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.length = 2  # type: ignore[misc]


def test_parts_of_different_lengths_are_refused() -> None:
    engine = ToyEngine(toy_config())
    cache = HybridCacheManager(engine, 1)
    feed(engine, cache, {0: [1, 2]})
    early = cache.capture(0)
    feed(engine, cache, {0: [3]})
    late = cache.capture(0)
    for mixed in (dataclasses.replace(late, mamba=early.mamba), dataclasses.replace(late, length=2)):
        with pytest.raises(RequestError, match="one length"):
            cache.restore(0, mixed)
    assert cache.lengths == [3]


def test_a_snapshot_of_another_model_is_refused_before_anything_is_written() -> None:
    # Two attention layers as well: the KV part fits, the recurrent part does not.
    engine, other = ToyEngine(toy_config(HYBRID)), ToyEngine(toy_config(PURE_ATTENTION))
    foreign = HybridCacheManager(other, 1)
    feed(other, foreign, {0: [1]})
    cache = HybridCacheManager(engine, 1)
    feed(engine, cache, {0: [1, 2]})
    with pytest.raises(RequestError, match="belongs to another model"):
        cache.restore(0, foreign.capture(0))
    good = cache.capture(0)
    wide = {name: array.astype(np.float64) for name, array in good.kv.states.items()}
    with pytest.raises(RequestError, match=r"past_key_0: expected .*float32\[1, 2, 2\], found float64"):
        cache.restore(0, dataclasses.replace(good, kv=dataclasses.replace(good.kv, states=wide)))
    np.testing.assert_array_equal(feed(engine, cache, {0: [3]})[0], toy_logits(engine.config, [1, 2, 3]))


def test_caches_grow_in_doubling_steps_and_keep_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybridge.runtime.caches.hybrid, "FIRST_CAPACITY", 4)
    engine = ToyEngine(toy_config(max_seq_len=20))
    cache = HybridCacheManager(engine, 2, tokens=3)
    sizes, tokens = [cache.states.max_seq], []
    for token in range(20):
        cache.reserve(token + 1)
        sizes.append(cache.states.max_seq)
        tokens.append(token)
        logits = feed(engine, cache, {0: [token]})
        np.testing.assert_array_equal(logits[0], toy_logits(engine.config, tokens))
    assert sorted(set(sizes)) == [4, 8, 16, 20]
    with pytest.raises(RequestError, match="20"):
        cache.reserve(21)


def test_a_long_snapshot_grows_a_short_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybridge.runtime.caches.hybrid, "FIRST_CAPACITY", 4)
    engine = ToyEngine(toy_config())
    long, short = HybridCacheManager(engine, 1, tokens=9), HybridCacheManager(engine, 2)
    feed(engine, long, {0: list(range(9))})
    short.restore(1, long.capture(0))
    assert short.states.max_seq == 16
    short.take_row(long, 0, 0)
    logits = feed(engine, short, {0: [1], 1: [2]})
    np.testing.assert_array_equal(logits[0], toy_logits(engine.config, [*range(9), 1]))
    np.testing.assert_array_equal(logits[1], toy_logits(engine.config, [*range(9), 2]))


def test_compaction_shrinks_rows_and_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybridge.runtime.caches.hybrid, "FIRST_CAPACITY", 4)
    engine = ToyEngine(toy_config())
    cache = HybridCacheManager(engine, 3, tokens=12)
    feed(engine, cache, {0: list(range(12)), 1: [7], 2: [8, 9]})
    cache.compact([2, 1])
    assert (cache.rows, cache.states.max_seq, cache.lengths) == (2, 4, [2, 1])
    logits = feed(engine, cache, {0: [1], 1: [2]})
    np.testing.assert_array_equal(logits[0], toy_logits(engine.config, [8, 9, 1]))
    np.testing.assert_array_equal(logits[1], toy_logits(engine.config, [7, 2]))


@pytest.mark.parametrize(("tokens", "capacity"), [(0, 256), (256, 256), (257, 512), (5000, 8192), (9999, 8192)])
def test_capacity_doubles_from_the_first_and_stops_at_the_limit(tokens: int, capacity: int) -> None:
    assert capacity_for(tokens, 8192) == capacity
    assert capacity_for(tokens, 100) == 100
