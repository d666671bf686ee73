"""What goes first: states and KV each have an order of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind
from hybridge.runtime.prefix_cache.eviction_policy import CostAwareEviction, EvictionPolicy, LruEviction
from hybridge.runtime.prefix_cache.past_prompts import PastPrompts
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.world import World, run

KINDS = ("state", "kv")


class NoGain(CostAwareEviction):
    """Of states that save nothing: the order of use."""

    def new_state_value(self, clock: int, start: int, end: int, uses: float) -> float:
        return super().new_state_value(clock, end, end, uses)


ORDERS = pytest.mark.parametrize("policy", [LruEviction(), NoGain()], ids=["lru", "value"])


def first_tokens(world: World, count: int = 30) -> dict[int, tuple[int, ...]]:
    """Sequences of ``count`` tokens that share nothing, by their first token, kept in this order."""
    sequences = {first: (first, *run(100, 99 + count)) for first in (1, 2, 3)}
    for tokens in sequences.values():
        world.keep(tokens)
    return sequences


def gone(world: World, kind: str) -> list[tuple[int, ...]]:
    """The sequences in the order in which their states, or their KV, go."""
    return world.gone(world.tree.evict_state if kind == "state" else world.tree.evict_kv)


def lengths_gone(
    policy: EvictionPolicy, kept: Sequence[tuple[int, ...]], *touched: tuple[int, ...]
) -> dict[str, list[int]]:
    """The lengths of what goes, by kind, after some sequences were ``kept`` and then some of them ``touched``."""
    orders = {}
    for kind in KINDS:
        world = World(policy=policy)
        for tokens in kept:
            world.keep(tokens)
        for tokens in touched:
            world.touch(tokens)
        orders[kind] = [len(tokens) for tokens in gone(world, kind)]
    return orders


@ORDERS
@pytest.mark.parametrize("kind", KINDS)
def test_the_most_recently_used_entry_is_evicted_last(policy: EvictionPolicy, kind: str) -> None:
    world = World(policy=policy)
    sequences = first_tokens(world)
    world.touch(sequences[1])
    assert [tokens[0] for tokens in gone(world, kind)] == [2, 3, 1]


@ORDERS
def test_continuing_from_a_state_refreshes_its_kv_but_not_the_state(policy: EvictionPolicy) -> None:
    """A sequence continues from 20 to 40 tokens after another: its state at 20 is the oldest, its KV the newest."""
    orders = lengths_gone(policy, [run(0, 20), (7, 7, 7), run(0, 40)])
    assert orders == {"state": [20, 3, 40], "kv": [3, 40, 20]}


@ORDERS
def test_touching_an_inner_state_keeps_it_longer_than_the_leaf_but_not_its_kv(policy: EvictionPolicy) -> None:
    orders = lengths_gone(policy, [run(0, 20), run(0, 40), (7, 7, 7)], run(0, 20))
    # A leaf always goes before its parent, whichever was used last.
    assert orders == {"state": [40, 3, 20], "kv": [40, 3, 20]}


@ORDERS
def test_a_split_does_not_make_anything_younger_or_older(policy: EvictionPolicy) -> None:
    world = World(policy=policy)
    sequences = first_tokens(world)
    world.keep((*sequences[1][:11], 5, 5))  # splits what is the oldest
    assert [tokens[:1] + tokens[11:12] for tokens in world.gone(world.tree.evict_kv)] == [
        (1, 110),
        (2, 110),
        (3, 110),
        (1, 5),
    ]


@ORDERS
def test_locked_entries_keep_their_order(policy: EvictionPolicy) -> None:
    world = World(policy=policy)
    sequences = first_tokens(world)
    node = world.node(sequences[1])
    world.tree.lock(node)
    assert [tokens[0] for tokens in world.gone(world.tree.evict_state)] == [2, 3]
    world.tree.unlock(node)
    assert world.gone(world.tree.evict_state) == [sequences[1]], "a lock alone is no use"


def test_a_state_that_saves_more_goes_later() -> None:
    world = World(policy=CostAwareEviction())
    for first, count in ((1, 300), (2, 100), (3, 50)):
        world.keep((first, *run(400, 399 + count)))
    assert [tokens[0] for tokens in gone(world, "state")] == [3, 2, 1]


@pytest.mark.parametrize(("kind", "uses"), [(CheckpointKind.BRANCH, 0), (CheckpointKind.SPREAD, 3)], ids=str)
def test_a_state_that_is_used_more_goes_later(kind: CheckpointKind, uses: int) -> None:
    """What was never used counts as states of its kind usually are."""
    world = World(policy=CostAwareEviction())
    for first in (1, 2):
        world.keep((first, *run(400, 500)))
    node = world.node((1, *run(400, 500)))
    node.kind, node.uses = kind, uses
    world.tree.offer(node)
    assert [tokens[0] for tokens in gone(world, "state")] == [2, 1]


def test_a_match_alone_refreshes_nothing() -> None:
    world = World()
    for first in (1, 2):
        world.keep((first, *run(10, 40)))
    world.resumed((1, *run(10, 40)))
    world.tree.evict_state()
    assert {tokens[0] for tokens in world.sequences()} == {2}


def test_a_state_gains_value_when_its_ancestor_is_evicted() -> None:
    world = World(policy=CostAwareEviction())
    deep = world.insert((1, *run(10, 300)))
    world.keep((2, *run(400, 500)))
    # Just below `deep` a state saves little: it is what goes first.
    world.keep((1, *run(10, 301)))
    world.tree.unlock_state(deep)
    world.tree.evict_state()
    assert (1, *run(10, 301)) not in world.sequences()
    world.keep((1, *run(10, 301)))
    world.tree.drop_state(deep)
    world.tree.evict_state()
    assert (1, *run(10, 301)) in world.sequences(), "its value was that of the time when it was inserted"


@pytest.mark.parametrize("evicts", ["evict_state", "evict_kv"])
def test_the_queues_forget_nodes_that_left_the_tree(evicts: str) -> None:
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


def test_the_tree_of_past_prompts_forgets_too() -> None:
    past = PastPrompts(prompts=4)
    for turn in range(400):
        past.add("", key_from_tokens([turn, *run(1000, 1150)]))
    tree = past._tree
    assert tree.nodes <= 12 and queues_of(tree) < 250
    assert not tree.events.recorded
