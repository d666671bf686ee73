"""The tree in the situations that have names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.prefix_cache.events import Change
from runtime.prefix_cache.node import Node
from runtime.prefix_cache.radix_tree import RadixTree
from runtime.prefix_cache.token_key import key_from_tokens
from runtime.prefix_cache.worth import CacheCosts, ValueWorth
from tests.runtime.prefix_cache.fake_memory import FakeBlocks, FakeSlots, check_tree, tokens_of, written_blocks

BLOCK_SIZE = 16


class World:
    """A tree over fake memory, and requests that come and go at once."""

    def __init__(self, block_size: int = BLOCK_SIZE, **options: object) -> None:
        self.blocks, self.slots = FakeBlocks(400, block_size), FakeSlots(140)
        self.tree = RadixTree(self.blocks, self.slots, block_size, **options)  # type: ignore[arg-type]

    def insert(self, tokens: Sequence[int], state: bool = True, namespace: str = "") -> Node:
        """Compute ``tokens`` on blocks of their own, insert them, and lock them."""
        own = written_blocks(self.blocks, tokens)
        assert own is not None
        slot = self.slots.allocate(tuple(tokens)) if state else None
        node, took = self.tree.insert(key_from_tokens(tokens), own, slot, namespace)
        self.tree.lock(node)
        self.blocks.release(own)
        if slot is not None and not took:
            self.slots.release([slot])
        check_tree(self.tree, self.blocks, self.slots)
        return node

    def keep(self, tokens: Sequence[int], state: bool = True, namespace: str = "") -> None:
        """Insert ``tokens`` and let go of them."""
        self.tree.unlock(self.insert(tokens, state, namespace))
        check_tree(self.tree, self.blocks, self.slots)

    def resumed(self, tokens: Sequence[int], namespace: str = "") -> int:
        """Tokens that a request for ``tokens`` need not compute."""
        return self.tree.match(key_from_tokens(tokens), namespace).length

    def sequences(self) -> set[tuple[int, ...]]:
        """All tokens up to each state."""
        return {tokens_of(node) for node in self.tree.walk() if node.state is not None}


def run(start: int, stop: int) -> tuple[int, ...]:
    return tuple(range(start, stop))


def test_an_empty_tree_knows_nothing() -> None:
    world = World()
    match = world.tree.match(key_from_tokens(run(0, 50)))
    assert (match.length, match.known, match.branches) == (0, 0, False)
    assert not world.tree.evict_kv() and not world.tree.evict_state()


@pytest.mark.parametrize("asked", [99, 100, 101, 130])
def test_a_state_serves_whoever_comes_as_far(asked: int) -> None:
    world = World()
    world.keep(run(0, 100))
    assert world.resumed(run(0, asked)) == (100 if asked >= 100 else 0)


def test_nested_sequences_share_their_blocks() -> None:
    world = World()
    for stop in (20, 52, 100):
        world.keep(run(0, stop))
    assert world.sequences() == {run(0, 20), run(0, 52), run(0, 100)}
    # 0..20 brings blocks 0 and 1, 20..52 copies of 1 on, and so on: one more for each end inside a block.
    assert 400 - len(world.blocks.free) == 2 + 3 + 4
    assert world.resumed(run(0, 51)) == 20


def test_a_prompt_that_parts_inside_a_node_gets_the_deepest_state_before() -> None:
    world = World()
    world.keep(run(0, 40))
    world.keep(run(0, 100))
    match = world.tree.match(key_from_tokens((*run(0, 70), 999, 998)))
    assert (match.length, match.known, match.branches) == (40, 70, True)


def test_a_branch_point_gets_a_state_only_from_who_was_there() -> None:
    world = World()
    world.keep(run(0, 100))
    world.keep((*run(0, 60), 7, 7, 7))
    assert world.resumed(run(0, 60)) == 0, "the node that the split made has a state"
    world.keep(run(0, 60))
    assert world.resumed((*run(0, 60), 5)) == 60


def test_a_split_under_a_lock_moves_nobody() -> None:
    world = World()
    reader = world.insert(run(0, 100))
    world.keep((*run(0, 37), 5, 5))
    assert tokens_of(reader) == run(0, 100)
    while world.tree.evict_kv():
        check_tree(world.tree, world.blocks, world.slots)
    assert world.sequences() == {run(0, 100)}
    world.tree.unlock(reader)
    check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.evict_kv() and not world.tree.nodes


def test_what_was_used_last_goes_last() -> None:
    world = World()
    for first in (1, 2, 3):
        world.keep((first, *run(10, 40)))
    world.tree.touch(world.tree.match(key_from_tokens((1, *run(10, 40)))).node)
    gone = []
    while world.tree.states:
        before = world.sequences()
        world.tree.evict_state()
        gone += [tokens[0] for tokens in before - world.sequences()]
    assert gone == [2, 3, 1]


def test_a_match_alone_refreshes_nothing() -> None:
    world = World()
    for first in (1, 2):
        world.keep((first, *run(10, 40)))
    world.resumed((1, *run(10, 40)))
    world.tree.evict_state()
    assert {tokens[0] for tokens in world.sequences()} == {2}


def test_an_inner_state_leaves_its_kv() -> None:
    world = World()
    world.keep(run(0, 30))
    world.keep((*run(0, 30), 100, 101))
    world.keep((*run(0, 30), 200, 201))
    world.tree.touch(world.tree.match(key_from_tokens((*run(0, 30), 100, 101))).node)
    world.tree.evict_state()
    match = world.tree.match(key_from_tokens((*run(0, 30), 9)))
    assert (match.length, match.known) == (0, 30)
    assert world.resumed((*run(0, 30), 100, 101)) == 32


def test_a_chain_of_tombstones_goes_with_its_leaf() -> None:
    world = World()
    readers = [world.insert(run(0, stop)) for stop in (10, 20, 30, 40)]
    for reader in readers[:3]:
        world.tree.unlock_state(reader)
    while world.tree.evict_state():
        pass
    assert world.sequences() == {run(0, 40)}
    for reader in readers[:3]:
        world.tree.unlock_kv(reader)
    assert world.tree.nodes == 4, "what a reader below needs is gone"
    world.tree.unlock(readers[3])
    check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == 1
    assert world.tree.evict_state() and not world.tree.nodes
    assert len(world.blocks.free) == 400


def test_a_deep_chain_goes_without_recursion() -> None:
    world = World()
    tokens, nodes = run(0, 1200), []
    own = written_blocks(world.blocks, tokens)
    assert own is not None
    for stop in range(1, 1201):
        node, _ = world.tree.insert(key_from_tokens(tokens[:stop]), own)
        world.tree.lock(node)
        nodes.append(node)
    world.blocks.release(own)
    for node in nodes:
        world.tree.unlock(node)
    assert not world.tree.nodes and len(world.blocks.free) == 400


def test_a_second_state_for_the_same_tokens_stays_with_its_owner() -> None:
    world = World()
    readers = [world.insert(run(0, 33)) for _ in range(3)]
    assert world.tree.states == 1 and len({id(reader) for reader in readers}) == 1
    assert sum(consumed is not None for consumed in world.slots.consumed) == 1


def test_namespaces_share_nothing() -> None:
    world = World()
    world.keep(run(0, 50), namespace="a")
    assert world.resumed(run(0, 60), "a") == 50
    assert world.resumed(run(0, 60), "b") == 0 and world.resumed(run(0, 60)) == 0


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_a_prompt_that_comes_in_chunks_can_be_resumed_after_each(size: int) -> None:
    world = World()
    stops = [*range(size, 130, size), 130]
    for stop in stops:
        world.keep(run(0, stop))
    for asked in (1, 63, 64, 65, 129, 130, 131):
        assert world.resumed(run(0, asked)) == max((stop for stop in stops if stop <= asked), default=0)


def test_without_recurrent_layers_every_position_can_be_resumed() -> None:
    world = World(has_state=False)
    world.keep(run(0, 100), state=False)
    match = world.tree.match(key_from_tokens((*run(0, 37), 5)))
    assert match.length == 37
    stored = world.blocks.content[world.tree.blocks_of(match.node, 37)].ravel()[:37]
    assert tuple(stored) == run(0, 37)


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


def test_events_tell_what_came_and_went() -> None:
    world = World()
    world.keep(run(0, 20), namespace="a")
    world.tree.clear()
    events = world.tree.events.drain()
    assert [event.change for event in events] == [
        Change.KV_INSERTED,
        Change.STATE_INSERTED,
        Change.STATE_REMOVED,
        Change.KV_REMOVED,
    ]
    assert {(event.namespace, event.start, event.end) for event in events} == {("a", 0, 20)}
    assert not world.tree.events.drain()


@pytest.mark.parametrize("tokens", [(-1,), (2**31,)])
def test_a_token_that_is_none_is_refused(tokens: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected token ids"):
        key_from_tokens(tokens)
