"""Nodes without a state: they serve nodes below, no prompt resumes there, and they go with the last node below."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.fake_memory import check_tree, tokens_of, written_blocks
from tests.runtime.prefix_cache.world import World, run


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


def test_a_split_leaves_a_tombstone_until_one_side_goes() -> None:
    world = World()
    world.keep(run(0, 40))
    world.keep((*run(0, 25), 7, 8, 9))
    match = world.tree.match(key_from_tokens((*run(0, 25), 1)))
    assert (match.length, match.known, world.tree.nodes) == (0, 25, 3)
    assert world.tree.evict_kv() and world.tree.nodes == 1, "a tombstone with one child is a part of it"
    assert world.sequences() == {(*run(0, 25), 7, 8, 9)}
    assert 400 - len(world.blocks.free) == 2
    check_tree(world.tree, world.blocks, world.slots)


@pytest.mark.parametrize("length", [1, 7, 60])
def test_a_long_chain_of_tombstones_comes_down_to_one_node(length: int) -> None:
    """Each token of a prompt is a node while it is locked, one node otherwise."""
    world = World()
    tokens = run(0, length + 1)
    readers = [world.insert(tokens[:stop]) for stop in range(1, length + 2)]
    for reader in readers[:-1]:
        world.tree.unlock_state(reader)
        world.tree.drop_state(reader)
        check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == length + 1 and world.sequences() == {tokens}
    for reader in readers[:-1]:
        world.tree.unlock_kv(reader)
    world.tree.unlock(readers[-1])
    check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == 1 and world.resumed(tokens) == length + 1
    assert 400 - len(world.blocks.free) == -(-(length + 1) // 16), "copies of a block that is no longer needed"


def test_tombstones_above_a_leaf_are_removed_up_to_the_next_state_or_fork() -> None:
    world = World()
    world.keep(run(0, 10))
    world.keep((*run(0, 20), 5))
    world.keep((*run(0, 20), 6, 6))
    assert world.tree.nodes == 4
    world.tree.drop_state(world.node((*run(0, 20), 5)))
    assert world.sequences() == {run(0, 10), (*run(0, 20), 6, 6)} and world.tree.nodes == 2, "the fork is none any more"
    world.tree.drop_state(world.node((*run(0, 20), 6, 6)))
    assert world.sequences() == {run(0, 10)} and world.tree.nodes == 1
    match = world.tree.match(key_from_tokens(run(0, 20)))
    assert (match.length, match.known) == (10, 10), "KV without a state to resume from is no hit"
    world.tree.drop_state(world.node(run(0, 10)))
    assert not world.tree.nodes and len(world.blocks.free) == 400 and not world.tree.namespaces()


@pytest.mark.parametrize("at", [1, 15, 16, 17, 39])
def test_a_chain_is_armed_again_with_states(at: int) -> None:
    world = World()
    world.keep(run(0, 40))
    world.keep((*run(0, at), 900))
    assert world.resumed((*run(0, at), 901)) == 0
    world.keep(run(0, at))
    assert world.resumed((*run(0, at), 901)) == at and world.tree.states == 3
    for _ in range(3):
        world.tree.drop_state(world.node(run(0, at)))
        assert world.resumed((*run(0, at), 901)) == 0
        world.keep(run(0, at))
        assert world.resumed((*run(0, at), 901)) == at
    world.tree.clear()
    check_tree(world.tree, world.blocks, world.slots)
    assert len(world.blocks.free) == 400


def test_a_tombstone_under_a_lock_stays_when_all_below_it_goes() -> None:
    world = World()
    reader = world.insert(run(0, 20))
    world.keep((*run(0, 20), 5))
    world.keep((*run(0, 20), 6))
    world.tree.unlock_state(reader)
    while world.tree.evict_state() or world.tree.evict_kv():
        check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == 1 and tokens_of(reader) == run(0, 20) and reader.state is None
    match = world.tree.match(key_from_tokens(run(0, 25)))
    assert (match.length, match.known) == (0, 20)
    world.keep(run(0, 20))
    assert reader.state is not None, "it is armed again while it is locked"
    world.tree.unlock_kv(reader)
    assert world.sequences() == {run(0, 20)}, "with a state it stays"


def test_a_computation_that_leaves_no_state_leaves_nothing() -> None:
    world = World()
    reader = world.insert(run(0, 30), state=False)
    assert world.tree.match(key_from_tokens(run(0, 30))).known == 30, "others see how far it has come"
    world.tree.unlock(reader)
    assert not world.tree.nodes and len(world.blocks.free) == 400


def test_a_state_that_went_comes_back_to_the_kv_that_stayed() -> None:
    world = World()
    world.keep(run(0, 30))
    world.keep(run(0, 60))
    inner = world.node(run(0, 30))
    blocks = inner.blocks
    reader = world.node(run(0, 60))
    world.tree.lock(reader)
    world.tree.drop_state(inner)
    assert inner.attached and inner.state is None and inner.blocks == blocks
    free = len(world.blocks.free)
    world.keep(run(0, 30))
    assert inner.state is not None and inner.blocks == blocks and len(world.blocks.free) == free
    world.tree.unlock(reader)
    assert world.sequences() == {run(0, 30), run(0, 60)}
