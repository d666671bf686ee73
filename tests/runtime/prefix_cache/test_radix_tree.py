"""The tree in the situations that have names."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.world import World, run


def test_an_empty_tree_matches_nothing() -> None:
    world = World()
    match = world.tree.match(key_from_tokens(run(0, 50)))
    assert (match.length, match.known, match.branches) == (0, 0, False)
    assert not world.tree.evict_kv() and not world.tree.evict_state()


@pytest.mark.parametrize("length", [99, 100, 101, 130])
def test_a_state_serves_every_prompt_that_reaches_it(length: int) -> None:
    world = World()
    world.keep(run(0, 100))
    assert world.resumed(run(0, length)) == (100 if length >= 100 else 0)


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


def test_a_branch_point_gets_a_state_only_from_a_request_that_computed_it() -> None:
    world = World()
    world.keep(run(0, 100))
    world.keep((*run(0, 60), 7, 7, 7))
    assert world.resumed(run(0, 60)) == 0, "the node that the split made has a state"
    world.keep(run(0, 60))
    assert world.resumed((*run(0, 60), 5)) == 60


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
    for length in (1, 63, 64, 65, 129, 130, 131):
        assert world.resumed(run(0, length)) == max((stop for stop in stops if stop <= length), default=0)


def test_without_recurrent_layers_every_position_can_be_resumed() -> None:
    world = World(has_state=False)
    world.keep(run(0, 100), state=False)
    match = world.tree.match(key_from_tokens((*run(0, 37), 5)))
    assert match.length == 37
    stored = world.blocks.content[world.tree.blocks_of(match.node, 37)].ravel()[:37]
    assert tuple(stored) == run(0, 37)


@pytest.mark.parametrize("tokens", [(-1,), (2**31,)])
def test_an_invalid_token_is_refused(tokens: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected token ids"):
        key_from_tokens(tokens)
