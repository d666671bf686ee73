"""The cost of a lookup, an insert and an eviction does not grow with the tree or the number of namespaces."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.sequence_memory import SequenceMemory
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.prefix_cache.eviction_policy import CostAwareEviction, EvictionPolicy, LruEviction
from hybridge.runtime.prefix_cache.metrics import CacheMetrics
from hybridge.runtime.prefix_cache.past_prompts import NoMemory
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.bytecodes import bytecodes
from tests.runtime.prefix_cache.world import run
from tests.support.effort import examples

SMALL, LARGE = 200, examples(80_000)
Work = Callable[[RadixTree, int], object]


def prompt(number: int, length: int = 24) -> bytes:
    """The key of a prompt that parts from most others after two tokens, and from all after three."""
    return key_from_tokens([7, number % 317, number, *run(1000, 997 + length)])


def tree_of(nodes: int, policy: EvictionPolicy) -> RadixTree:
    tree = RadixTree(NoMemory(), NoMemory(), 16, policy=policy)
    number = 0
    while tree.nodes < nodes:
        tree.insert(prompt(number), range(4), number, f"tenant {number % 3}")
        number += 1
    return tree


@pytest.fixture(scope="module", params=["lru", "value"])
def trees(request: pytest.FixtureRequest) -> tuple[RadixTree, RadixTree]:
    """One of few nodes, one of many."""
    small, large = (
        tree_of(nodes, LruEviction() if request.param == "lru" else CostAwareEviction()) for nodes in (SMALL, LARGE)
    )
    return small, large


def insert(tree: RadixTree, turn: int) -> None:
    tree.insert(prompt(2_000_000 + turn), range(4), turn, "tenant 1")


def reserve(tree: RadixTree, turn: int) -> None:
    node = tree.match(prompt(3 * turn), "tenant 0").node
    tree.lock(node)
    tree.unlock_state(node)
    tree.unlock_kv(node)


def test_work_is_counted_alone() -> None:
    """Calls of the garbage collector, which may run at any time, are not counted."""

    def work() -> list[list[int]]:
        return [[] for _ in range(20_000)]

    alone, calls = bytecodes(work), []
    gc.callbacks.append(lambda phase, info: calls.append(phase))
    try:
        assert bytecodes(work) == alone and gc.isenabled()
        gc.collect()
    finally:
        gc.callbacks.pop()
    assert calls


WORKS: dict[str, Work] = {
    "match": lambda tree, turn: tree.match(prompt(3 * turn), "tenant 0"),
    "match of a stranger": lambda tree, turn: tree.match(key_from_tokens(run(9, 40)), "tenant 0"),
    "insert": insert,
    "touch": lambda tree, turn: tree.touch(tree.match(prompt(3 * turn), "tenant 0").node),
    "lock and unlock": reserve,
    "least": lambda tree, turn: (tree.least_state(), tree.least_leaf(), tree.free_states),
    "evict a state": lambda tree, turn: tree.evict_state(),
    "evict KV": lambda tree, turn: tree.evict_kv(),
}


@pytest.mark.parametrize("name", WORKS)
def test_no_work_grows_with_the_tree(trees: tuple[RadixTree, RadixTree], name: str) -> None:
    """Means of twenty; the C code that they call takes logarithmic time, or a share of the earlier insertions."""
    small, large = (sum(bytecodes(WORKS[name], tree, turn) for turn in range(20)) / 20 for tree in trees)
    assert 10 < large <= 1.5 * small + 60


@pytest.mark.parametrize("length", [100, 1_000, 10_000])
def test_a_match_costs_what_its_nodes_cost_not_its_tokens(length: int) -> None:
    """A run of tokens is compared as a whole."""
    tree = RadixTree(NoMemory(), NoMemory(), 16)
    key = key_from_tokens(range(length))
    tree.insert(key, range(length), 0)
    assert bytecodes(tree.match, key) < 200


def looked_up(namespaces: int) -> tuple[int, str]:
    """Instructions to count a miss next to so many tenants, all with the same prompt, and its reason."""
    cache = RadixCache(
        PoolSizes(0, 16, namespaces + 1), CacheNeeds(kv=False, state=True), PrefixCacheSettings(policy="lru")
    )
    key = prompt(0)
    for number in range(namespaces):
        cache.tree.insert(key_from_tokens([number + 500, *run(0, 30)]), (), cache.slots.allocate(), f"tenant {number}")
    memory = SequenceMemory([7, *run(1, 40)], "newcomer")
    prefix = cache.match(memory).prefix
    cache.metrics = CacheMetrics()
    assert isinstance(prefix, RadixPrefix) and key
    work = bytecodes(lambda: cache.metrics.looked_up(cache.tree, cache.evicted, memory, prefix))
    (reason,) = cache.metrics.misses
    return work, reason


def test_a_miss_costs_the_same_however_many_tenants_there_are() -> None:
    work, reason = looked_up(5_000)
    assert work < 1.2 * looked_up(100)[0] and reason == "no_kv"
