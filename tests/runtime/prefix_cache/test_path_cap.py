"""How many states one way may have: those of least worth go, where sequences part they stay."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.path_cap import thin_path
from hybridge.runtime.prefix_cache.worth import CacheCosts, ValueWorth
from tests.runtime.prefix_cache.fake_memory import check_tree
from tests.runtime.prefix_cache.world import World, run

ENDS = (10, 20, 30, 40, 50, 60)


def chain(world: World) -> None:
    for stop in ENDS:
        world.keep(run(0, stop))


@pytest.mark.parametrize(("most", "left"), [(1, [60]), (3, [40, 50, 60]), (6, list(ENDS)), (99, list(ENDS))])
def test_the_latest_stay_where_use_alone_counts(most: int, left: list[int]) -> None:
    world = World()
    chain(world)
    assert thin_path(world.tree, world.node(run(0, 60)), most) == len(ENDS) - len(left)
    assert sorted(len(tokens) for tokens in world.sequences()) == left
    check_tree(world.tree, world.blocks, world.slots)
    assert world.tree.nodes == len(left), "a tombstone that only prolongs the way is merged"
    assert thin_path(world.tree, world.node(run(0, 60)), most) == 0


def test_what_was_touched_last_stays() -> None:
    world = World()
    chain(world)
    world.touch(run(0, 20))
    assert thin_path(world.tree, world.node(run(0, 60)), 2) == 4
    assert sorted(len(tokens) for tokens in world.sequences()) == [20, 60]


def test_what_saves_more_stays() -> None:
    world = World(worth=ValueWorth(CacheCosts(1, 1000), alpha=1e6))
    for stop in (3, 90, 93, 100):
        world.keep(run(0, stop))
    thin_path(world.tree, world.node(run(0, 100)), 2)
    assert sorted(len(tokens) for tokens in world.sequences()) == [90, 100]


def test_what_is_locked_and_where_sequences_part_stays() -> None:
    world = World()
    chain(world)
    world.keep((*run(0, 20), 7, 7))
    world.tree.lock(world.node(run(0, 30)))
    assert thin_path(world.tree, world.node(run(0, 60)), 1) == 3
    assert sorted(len(tokens) for tokens in world.sequences()) == [20, 22, 30, 60]
    check_tree(world.tree, world.blocks, world.slots)


def test_other_ways_are_left_alone() -> None:
    world = World()
    chain(world)
    for stop in (11, 12, 13):
        world.keep((*run(0, 10), *run(800, 790 + stop)))
    thin_path(world.tree, world.node(run(0, 60)), 1)
    assert sorted(len(tokens) for tokens in world.sequences()) == [10, 11, 12, 13, 60]
