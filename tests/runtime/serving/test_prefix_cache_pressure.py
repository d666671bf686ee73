"""The prefix cache where memory is short: it is evicted for requests, and only as much as needed."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.pinned import PinnedPrefix
from hybridge.runtime.serving.request import ServingRequest
from tests.runtime.serving.test_prefix_cache import cached_tokens, line
from tests.runtime.serving.test_prefix_cache_troubles import finish
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop
from tests.runtime.toy_paged_engine import toy_greedy


def pin(loop: ServingLoop, tokens: list[int], name: str, namespace: str = "") -> PinnedPrefix:
    """Keep ``tokens``, as ``CacheControl`` does it."""

    def compute() -> None:
        loop.add(ServingRequest(make_request(tokens, 1).request, namespace=namespace))
        run_all(loop)

    assert loop.served_cache is not None
    return loop.served_cache.pinned.add(PinnedPrefix(name, tuple(tokens), namespace), compute)


def kept(loop: ServingLoop, tokens: list[int], namespace: str = "") -> int:
    """Tokens that a request for ``tokens`` would find."""
    return loop.prefix_cache.tree.match(key_from_tokens(tokens), namespace).length


def test_a_newcomer_gets_its_slot_before_a_state_is_taken() -> None:
    """A slot for each row and no other: the states of one prompt's chunks do not block another prompt."""
    cache = PrefixCacheSettings(cached_states=0)
    loop, engine = toy_loop(prefix_cache=cache, max_rows=2, max_tokens=8, memory_bytes=25 * 32 * 2 + 2 * 16)
    assert loop.pools.sizes.num_slots == 2
    first, second = line(1, 80), line(2, 80)
    ids = [loop.add(make_request(first, 3))]
    for _ in range(3):
        loop.step()
    ids.append(loop.add(make_request(second, 3)))
    loop.step()
    loop.step()
    assert loop.scheduler.running == 2
    found = finish(loop, engine)
    assert [found[id_, 0] for id_ in ids] == [tuple(toy_greedy(engine.config, p, 3)) for p in (first, second)]


def test_a_request_that_cannot_start_evicts_nothing() -> None:
    """The only state has no second slot, and a request that would move it finds too few blocks: it stays."""
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=0), max_rows=2, memory_bytes=26 * 32 + 32)
    assert (loop.pools.sizes.num_slots, loop.pools.sizes.num_blocks) == (2, 26)
    shared = line(1, 20)
    cached_tokens(loop, shared, 4)
    before = kept(loop, [*shared, *toy_greedy(engine.config, shared, 3)])
    assert before == 23
    running = loop.add(make_request(line(2, 60), 30))  # takes the other slot and most of the blocks
    loop.step()
    waiting = loop.add(make_request([*shared, *toy_greedy(engine.config, shared, 3), *line(3, 60)], 3))
    for _ in range(5):
        loop.step()
        assert kept(loop, [*shared, *toy_greedy(engine.config, shared, 3)]) == 23
    assert loop.scheduler.waiting == 1
    outputs = run_all(loop)
    assert {output.request_id for output in outputs if output.piece and output.piece.generation} == {running, waiting}


def test_pinned_prefixes_do_not_evict_the_rest() -> None:
    """A request that has to wait for a row's blocks in any case does not cost others what they left."""
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20), max_rows=4, memory_bytes=60 * 32 + 16 * 24)
    blocks = loop.pools.sizes.num_blocks
    pin(loop, line(1, 80), "system")
    others = [line(seed, 14) for seed in (2, 3)]
    for prompt in others:
        cached_tokens(loop, prompt, 1)
    loop.add(make_request(line(4, 64), 30))
    loop.step()
    left = blocks - loop.prefix_cache.pool.used
    idle = loop.prefix_cache.pool.available - left
    assert left < 22
    loop.add(make_request(line(5, 90), 4))
    for _ in range(3):
        loop.step()
        assert [kept(loop, prompt) for prompt in others] == [14, 14], (left, idle)
    run_all(loop)


def test_host_memory_is_not_emptied_for_what_does_not_fit() -> None:
    cache = PrefixCacheSettings(cached_states=4, host_bytes=500)
    loop, _ = toy_loop(prefix_cache=cache, max_rows=1, memory_bytes=30 * 32 + 16 * 5)
    small, large = line(1, 20), line(2, 90)
    cached_tokens(loop, small, 3)
    while loop.prefix_cache.evict_kv():
        pass
    host = loop.served_cache.host
    assert 0 < host.nbytes <= 500 and not host.tree.events.recorded
    cached_tokens(loop, large, 3)  # 23 blocks of 32 bytes
    while loop.prefix_cache.evict_kv():
        pass
    assert host.nbytes <= 500
    assert cached_tokens(loop, small, 3) == 19


def test_a_device_that_takes_nothing_back_costs_only_time() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=4, host_bytes=100_000), max_rows=1)
    prompt = line(1, 40)
    expected = tuple(toy_greedy(engine.config, prompt, 3))
    cached_tokens(loop, prompt, 3)
    while loop.prefix_cache.evict_kv():
        pass

    def refused(*_: object) -> None:
        raise EngineError("told to fail")

    engine.swap_in = refused  # type: ignore[method-assign, assignment]
    id_ = loop.add(make_request(prompt, 3))
    assert finish(loop, engine) == {(id_, 0): expected}
    del engine.swap_in
    while loop.prefix_cache.evict_kv():
        pass
    assert cached_tokens(loop, prompt, 3) == 39
    assert loop.prefix_cache.metrics.restored_states == 1


def test_answers_of_many_tenants_that_evict_each_other() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=3), max_rows=3, memory_bytes=1_700)
    rng, expected = np.random.default_rng(4), {}
    begins = [line(seed, 24) for seed in range(3)]
    for turn in range(60):
        prompt = [*begins[turn % 3], *rng.integers(0, 61, 4).tolist()]
        submitted = ServingRequest(make_request(prompt, 3).request, namespace=f"tenant {int(rng.integers(6))}")
        expected[loop.add(submitted), 0] = tuple(toy_greedy(engine.config, prompt, 3))
    assert finish(loop, engine) == expected
    assert loop.prefix_cache.metrics.misses["evicted"] and loop.prefix_cache.metrics.hit_tokens
    assert set(loop.prefix_cache.tree.namespaces()) <= {f"tenant {n}" for n in range(6)}
    loop.prefix_cache.tree.clear()
    assert not loop.prefix_cache.tree.namespaces() and not loop.scheduler.manager.pool.used
