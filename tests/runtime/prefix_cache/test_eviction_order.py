"""What goes first: states and KV each have an order of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridge.runtime.prefix_cache.eviction_queue import EvictionQueue
from hybridge.runtime.prefix_cache.kinds import Chances
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.past_prompts import PastPrompts
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.tuner import Shadow
from hybridge.runtime.prefix_cache.worth import CacheCosts, LruWorth, ValueWorth, Worth
from tests.runtime.prefix_cache.world import World, run

KINDS = ("state", "kv")
# The policy "value" with an alpha of zero is the order of use, too.
ORDERS = pytest.mark.parametrize(
    "worth", [LruWorth(), ValueWorth(CacheCosts(1, 1000), alpha=0.0)], ids=["lru", "value"]
)


def first_tokens(world: World, count: int = 30) -> dict[int, tuple[int, ...]]:
    """Sequences of ``count`` tokens that share nothing, by their first token, kept in this order."""
    sequences = {first: (first, *run(100, 99 + count)) for first in (1, 2, 3)}
    for tokens in sequences.values():
        world.keep(tokens)
    return sequences


def gone(world: World, kind: str) -> list[tuple[int, ...]]:
    """The sequences in the order in which their states, or their KV, go."""
    return world.gone(world.tree.evict_state if kind == "state" else world.tree.evict_kv)


def lengths_gone(worth: Worth, kept: Sequence[tuple[int, ...]], *touched: tuple[int, ...]) -> dict[str, list[int]]:
    """The lengths of what goes, by kind, after some sequences were ``kept`` and then some of them ``touched``."""
    orders = {}
    for kind in KINDS:
        world = World(worth=worth)
        for tokens in kept:
            world.keep(tokens)
        for tokens in touched:
            world.touch(tokens)
        orders[kind] = [len(tokens) for tokens in gone(world, kind)]
    return orders


@ORDERS
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_used_last_goes_last(worth: Worth, kind: str) -> None:
    world = World(worth=worth)
    sequences = first_tokens(world)
    world.touch(sequences[1])
    assert [tokens[0] for tokens in gone(world, kind)] == [2, 3, 1]


@ORDERS
def test_who_goes_on_from_a_state_refreshes_the_kv_before_it_and_not_the_state(worth: Worth) -> None:
    """A sequence goes on from 20 to 40 tokens after another came: the state at 20 is the oldest, its KV the newest."""
    orders = lengths_gone(worth, [run(0, 20), (7, 7, 7), run(0, 40)])
    assert orders == {"state": [20, 3, 40], "kv": [3, 40, 20]}


@ORDERS
def test_touching_an_inner_state_keeps_it_longer_than_the_leaf_but_not_its_kv(worth: Worth) -> None:
    orders = lengths_gone(worth, [run(0, 20), run(0, 40), (7, 7, 7)], run(0, 20))
    # A leaf always goes before what it stands on, whoever was touched last.
    assert orders == {"state": [40, 3, 20], "kv": [40, 3, 20]}


@ORDERS
def test_a_split_does_not_make_anything_younger_or_older(worth: Worth) -> None:
    world = World(worth=worth)
    sequences = first_tokens(world)
    world.keep((*sequences[1][:11], 5, 5))  # splits what is the oldest
    assert [tokens[:1] + tokens[11:12] for tokens in world.gone(world.tree.evict_kv)] == [
        (1, 110),
        (2, 110),
        (3, 110),
        (1, 5),
    ]


@ORDERS
def test_what_is_locked_waits_at_its_place(worth: Worth) -> None:
    world = World(worth=worth)
    sequences = first_tokens(world)
    node = world.node(sequences[1])
    world.tree.lock(node)
    assert [tokens[0] for tokens in world.gone(world.tree.evict_state)] == [2, 3]
    world.tree.unlock(node)
    assert world.gone(world.tree.evict_state) == [sequences[1]], "a lock alone is no use"


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_saves_more_goes_later_and_a_longer_leaf_too(kind: str) -> None:
    world = World(worth=ValueWorth(CacheCosts(1, 1000), alpha=1000.0))
    for first, count in ((1, 300), (2, 100), (3, 50)):
        world.keep((first, *run(400, 399 + count)))
    assert [tokens[0] for tokens in gone(world, kind)] == [3, 2, 1]


def test_a_match_alone_refreshes_nothing() -> None:
    world = World()
    for first in (1, 2):
        world.keep((first, *run(10, 40)))
    world.resumed((1, *run(10, 40)))
    world.tree.evict_state()
    assert {tokens[0] for tokens in world.sequences()} == {2}


def test_worth_prefers_what_saves_more_for_its_bytes() -> None:
    costs = CacheCosts(kv_bytes_per_token=1, state_bytes=1000)
    worlds = {alpha: World(worth=ValueWorth(costs, alpha)) for alpha in (0.0, 100.0)}
    for world in worlds.values():
        world.keep((1, *run(10, 300)))
        world.keep((2, 3, 4))
        world.tree.evict_state()
    assert {tokens[0] for tokens in worlds[0.0].sequences()} == {2}, "without alpha, the older one goes"
    assert {tokens[0] for tokens in worlds[100.0].sequences()} == {1}


def test_a_state_is_worth_more_once_the_one_above_is_gone() -> None:
    world = World(worth=ValueWorth(CacheCosts(1, 1000), alpha=1000.0))
    deep = world.insert((1, *run(10, 300)))
    world.keep((2, *run(400, 500)))
    # Just below `deep` a state saves little: it is what goes first.
    world.keep((1, *run(10, 301)))
    world.tree.unlock_state(deep)
    world.tree.evict_state()
    assert (1, *run(10, 301)) not in world.sequences()
    world.keep((1, *run(10, 301)))
    world.tree._drop_state(deep)
    world.tree.evict_state()
    assert (1, *run(10, 301)) in world.sequences(), "its worth was that of the time when it was inserted"


@pytest.mark.parametrize("evicts", ["evict_state", "evict_kv"])
def test_the_queues_forget_what_has_left_the_tree(evicts: str) -> None:
    """However it left: from one queue, the other one, as a tombstone, by a merge."""
    world = World()
    for turn in range(200):
        tokens = (turn, *run(1000, 1020))
        world.keep(tokens[:12])
        world.keep(tokens)
        world.tree.drop_state(world.node(tokens[:12]))  # merged away
        while world.tree.states > 3:
            assert getattr(world.tree, evicts)()
        assert len(world.tree._state_queue) <= world.tree.nodes
        assert len(world.tree._kv_queue) <= world.tree.nodes


def queues_of(tree: RadixTree) -> int:
    return len(tree._state_queue) + len(tree._kv_queue) + len(tree._state_queue._heap) + len(tree._kv_queue._heap)


def test_trees_without_memory_forget_too() -> None:
    """Those of past prompts and of the candidates for alpha: what they forget must be gone."""
    past = PastPrompts(prompts=4)
    shadow = Shadow(CacheCosts(1, 1), 1.0, 4, PrefixCacheSettings(), Chances())
    for turn in range(400):
        key = key_from_tokens([turn, *run(1000, 1150)])
        past.add("", key)
        shadow.begin(key, "", (), 0)
        shadow.end(key, "")
    for tree in (past._tree, shadow._tree):
        assert tree.nodes <= 12 and queues_of(tree) < 250
        assert not tree.events.recorded


@pytest.mark.parametrize("count", [10, 1000, 5000])
def test_a_new_policy_orders_all_in_the_end_and_never_many_at_once(count: int) -> None:
    nodes = [Node(None, b"") for _ in range(count)]
    worths = {node: float(place) for place, node in enumerate(nodes)}
    asked = 0

    def worth(node: Node) -> float:
        nonlocal asked
        asked += 1
        return worths[node]

    queue = EvictionQueue(worth, lambda node: True)
    for node in nodes:
        queue.push(node)
    worths = {node: -value for node, value in worths.items()}
    asked = 0
    queue.reorder()
    assert asked == min(count, 1024)
    for _ in range(count // 64):
        asked = 0
        queue.push(nodes[0])
        assert asked <= 65
    assert [queue.pop() for _ in range(count)] == nodes[::-1] and queue.pop() is None
