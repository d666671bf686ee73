"""The reasons of misses, each provoked, and what the cache says that it holds."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.evicted_prefixes import EvictedPrefixes
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from tests.runtime.serving.test_prefix_cache import cached_tokens, line
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA

BOS = 1


def loop_of(layers: tuple[str, ...] = HYBRID, **cache: object) -> ServingLoop:
    settings = PrefixCacheSettings(**{"cached_states": 20, **cache})  # type: ignore[arg-type]
    return toy_loop(layers, prefix_cache=settings)[0]


def ask(loop: ServingLoop, prompt: list[int], namespace: str = "") -> str:
    """Run a request alone; what was counted for it: "hit", "partial hit" or the reason of its miss."""
    metrics = loop.prefix_cache.metrics
    before = metrics.hits, metrics.partial_hits, metrics.misses.copy()
    loop.add(ServingRequest(make_request(prompt, 2).request, namespace=namespace))
    run_all(loop)
    reasons = ["hit"] * (metrics.hits - before[0]) + ["partial hit"] * (metrics.partial_hits - before[1])
    for name, count in (metrics.misses - before[2]).items():
        reasons += [name] * count
    (reason,) = reasons
    return reason


def test_each_outcome_has_its_name() -> None:
    loop = loop_of()
    prompt = line(1, 30)
    assert ask(loop, [5]) == ask(loop, [5]) == "too_short"
    assert ask(loop, prompt) == "no_kv"
    assert ask(loop, prompt) == "hit"
    assert ask(loop, [*prompt, 5, 6]) == "partial hit"
    assert ask(loop, [*prompt[:20], *line(2, 5)]) == "no_state"
    assert ask(loop, prompt, "tenant") == "namespace"
    assert ask(loop, prompt, "tenant") == "hit"
    loop.prefix_cache.tree.clear()
    assert ask(loop, prompt) == "evicted"
    assert ask(loop, line(9, 30)) == "no_kv"
    counts = loop.prefix_cache.metrics
    submitted = [1, 1, 30, 30, 32, 25, 30, 30, 30, 30]
    assert counts.queried_tokens == sum(submitted) and counts.hit_tokens == 3 * 29
    assert counts.recomputed_tokens == 20 + 1, "twenty without a state, and the last token of the prompt"
    assert counts.hits + counts.partial_hits + counts.misses.total() == len(submitted)


def test_a_state_that_went_alone_was_evicted_too() -> None:
    loop = loop_of(prompt_checkpoints="branches")
    shared = line(1, 20)
    for tail in (2, 3):
        ask(loop, [*shared, *line(tail, 9)])
    while loop.prefix_cache.evict_state():
        pass
    assert ask(loop, [*shared, *line(4, 9)]) == "evicted"


@pytest.mark.parametrize("others", [1, 100])
def test_evicted_prefixes_of_one_beginning(others: int) -> None:
    evicted = EvictedPrefixes(capacity=others + 1)
    for tail in range(others + 1):
        evicted.add("", key_from_tokens([*range(20), tail, 7]))
        evicted.add("", key_from_tokens([*range(20), tail, 7]))
    assert all(evicted.knows("", key_from_tokens([*range(20), tail, 7, 8])) for tail in range(others + 1))
    assert not evicted.knows("", key_from_tokens([*range(20), 999, 7, 8]))
    evicted.add("", key_from_tokens([1, 2, 3]))
    assert not evicted.knows("", key_from_tokens([*range(20), 0, 7])), "the oldest is forgotten"
    for number in range(others + 1):
        evicted.add("", key_from_tokens([900 + number]))
    assert not evicted.knows("", key_from_tokens([1, 2, 3])) and len(evicted._lengths) == others + 1


def test_the_first_token_of_all_prompts_is_no_reason() -> None:
    """Every prompt begins with it, those of other tenants too."""
    loop = loop_of()
    ask(loop, [BOS, *line(1, 20)], "tenant")
    assert ask(loop, [BOS, *line(2, 20)]) == "no_kv", "a tenant that shares one token would not have helped"
    assert ask(loop, [BOS, *line(1, 20)]) == "namespace", "where this one knows a single token, the other has a state"


@pytest.mark.parametrize(("layers", "window"), [(HYBRID, None), (PURE_ATTENTION, None), (PURE_MAMBA, None)], ids=str)
def test_the_bytes_reported_are_those_of_the_pools(layers: tuple[str, ...], window: int | None) -> None:
    loop = loop_of(layers)
    for length in (30, 21, 9):
        cached_tokens(loop, line(1, length), 2)
    report = loop.served_cache.report(loop.pools.slot_bytes)
    manager = loop.scheduler.manager
    # Nothing runs: all memory in use is the cache's.
    assert report.kv_bytes == manager.pool.used * loop.pools.block_bytes
    assert report.state_bytes == manager.slots.used * loop.pools.slot_bytes
    assert (report.kv_bytes > 0) == (layers != PURE_MAMBA) and (report.state_bytes > 0) == (layers != PURE_ATTENTION)
    loop.prefix_cache.tree.clear()
    report = loop.served_cache.report(loop.pools.slot_bytes)
    assert report.kv_bytes == report.state_bytes == report.nodes == report.states == 0


def test_evictions_are_counted_by_kind() -> None:
    loop = loop_of(decode_interval=None)
    shared = line(1, 20)
    for tail in (2, 3):
        cached_tokens(loop, [*shared, *line(tail, 9)], 5)
    counts, tree = loop.prefix_cache.metrics, loop.prefix_cache.tree
    assert not counts.evicted_states and not counts.evicted_leaves
    states = tree.states
    assert loop.prefix_cache.evict_state() and (counts.evicted_states, counts.evicted_leaves) == (1, 0)
    leaves = 0
    while loop.prefix_cache.evict_kv():
        leaves += 1
    assert leaves and (counts.evicted_states, counts.evicted_leaves) == (states, leaves)
    assert counts.inserted_states == states
