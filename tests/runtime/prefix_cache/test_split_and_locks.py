"""Locks count their holders, and a split under a lock keeps the lock."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.fake_memory import check_tree, tokens_of
from tests.runtime.prefix_cache.world import World, run


def test_a_split_under_a_lock_keeps_the_lock() -> None:
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


def test_a_second_state_for_the_same_tokens_stays_with_its_owner() -> None:
    world = World()
    readers = [world.insert(run(0, 33)) for _ in range(3)]
    assert world.tree.states == 1 and len({id(reader) for reader in readers}) == 1
    assert sum(consumed is not None for consumed in world.slots.consumed) == 1


def test_a_lock_counts_its_holders() -> None:
    world = World()
    readers = [world.insert(run(0, 40)) for _ in range(3)]
    node = readers[0]
    assert (node.locks, node.state_locks) == (3, 3)
    for left in (2, 1, 0):
        assert not world.tree.evict_state() and not world.tree.evict_kv()
        world.tree.unlock(node)
        assert (node.locks, node.state_locks) == (left, left)
    assert world.tree.evict_kv() and not world.tree.nodes


def test_a_split_hands_all_locks_on() -> None:
    world = World()
    node = world.insert(run(0, 40))
    world.insert(run(0, 40))
    other = world.insert((*run(0, 17), 5, 5))
    upper = node.parent
    assert upper is not None and upper is other.parent and tokens_of(upper) == run(0, 17)
    assert (node.locks, upper.locks, upper.state_locks) == (2, 3, 0)
    world.tree.unlock(other)
    world.tree.unlock(node)
    assert (node.locks, upper.locks) == (1, 1)
    # An unlocked branch may be evicted, a locked one may not.
    assert world.gone(world.tree.evict_kv) == [(*run(0, 17), 5, 5)]
    assert node.parent is upper, "locked nodes must not be merged"
    world.tree.unlock(node)
    assert world.tree.nodes == 1 and world.sequences() == {run(0, 40)}


def test_the_state_may_go_before_the_kv_and_not_the_other_way_round() -> None:
    world = World()
    node = world.insert(run(0, 40))
    world.tree.unlock_state(node)
    assert not world.tree.evict_kv()
    assert world.tree.evict_state() and not world.tree.evict_state()
    assert node.attached and world.tree.match(key_from_tokens(run(0, 40))).known == 40
    world.tree.unlock_kv(node)
    assert not world.tree.nodes


def test_a_state_that_one_reader_has_copied_stays_for_the_other() -> None:
    world = World()
    node = world.insert(run(0, 40))
    world.insert(run(0, 40))
    world.tree.unlock_state(node)
    assert not world.tree.evict_state() and world.tree.free_states == 0
    world.tree.unlock_state(node)
    assert world.tree.free_states == 1
    world.tree.unlock_kv(node)
    world.tree.unlock_kv(node)
    assert world.tree.evict_state() and not world.tree.nodes


@pytest.mark.parametrize("outer_first", [True, False])
def test_readers_of_one_path_leave_in_any_order(outer_first: bool) -> None:
    world = World()
    readers = [world.insert(run(0, stop)) for stop in (20, 40, 60)]
    for reader in readers if outer_first else readers[::-1]:
        world.tree.unlock(reader)
        check_tree(world.tree, world.blocks, world.slots)
    assert world.sequences() == {run(0, 20), run(0, 40), run(0, 60)}
    world.tree.clear()
    assert len(world.blocks.free) == 400


def test_a_reader_is_split_at_every_token() -> None:
    """And nothing is left once the branches are gone."""
    world = World()
    reader = world.insert(run(0, 64))
    free = len(world.blocks.free)
    for at in (*range(1, 64, 2), *range(62, 0, -2)):
        world.keep((*run(0, at), 900 + at))
    assert world.tree.nodes == 1 + 63 + 63 and tokens_of(reader) == run(0, 64)
    assert all(node.locks == 1 for node in reader.path())
    assert len(world.gone(world.tree.evict_kv)) == 63
    world.tree.unlock(reader)
    check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == 1 and len(world.blocks.free) == free


def test_only_the_last_holder_can_have_the_slot() -> None:
    world = World()
    node = world.insert(run(0, 20))
    world.tree.lock(node)
    with pytest.raises(AssertionError):
        world.tree.take_state(node)
    world.tree.unlock(node)
    slot = world.tree.take_state(node)
    assert world.slots.consumed[slot] == run(0, 20) and not world.tree.states
    world.slots.release([slot])
    world.tree.unlock(node)
    assert not world.tree.nodes
