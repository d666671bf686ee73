"""Prompts that part inside a node, inside a KV block, and right at its ends. Blocks have 16 tokens."""

from __future__ import annotations

import pytest

from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from tests.runtime.prefix_cache.world import World, run

CUTS = pytest.mark.parametrize("cut", [1, 2, 14, 15, 16, 17, 31, 32, 33, 47])


@CUTS
def test_a_branch_adds_only_the_blocks_from_there_on(cut: int) -> None:
    world = World()
    world.keep(run(0, 48))
    other = (*run(0, cut), *run(900, 921))
    world.keep(other)
    # Three blocks; then those of the second sequence from the block in which it branches, which it copies.
    assert 400 - len(world.blocks.free) == 3 + -(-len(other) // 16) - cut // 16
    assert world.resumed(run(0, 60)) == 48 and world.resumed((*other, 5)) == cut + 21
    assert world.resumed((*run(0, cut), 5)) == 0
    match = world.tree.match(key_from_tokens((*run(0, cut), 5)))
    assert (match.known, match.branches) == (cut, False)
    world.keep(run(0, cut))
    assert world.resumed((*run(0, cut), 5)) == cut


@CUTS
def test_a_prompt_that_branches_inside_a_node_learns_the_position(cut: int) -> None:
    world = World()
    world.keep(run(0, 48))
    match = world.tree.match(key_from_tokens((*run(0, cut), 900)))
    assert (match.length, match.known, match.branches) == (0, cut, True)
    match = world.tree.match(key_from_tokens(run(0, cut)))
    assert (match.length, match.known, match.branches) == (0, cut, False), "it ends there, it does not part"


@CUTS
def test_without_states_a_prompt_resumes_at_the_very_token(cut: int) -> None:
    world = World(has_state=False)
    world.keep(run(0, 48), state=False)
    world.keep((*run(0, cut), *run(900, 903)), state=False)
    for tokens in ((*run(0, cut), 900, 901, 5), (*run(0, cut), 5), run(0, cut)):
        found = world.tree.match(key_from_tokens(tokens))
        common = max(
            sum(all(a == b for a, b in zip(tokens[:n], known, strict=False)) for n in range(1, len(tokens) + 1))
            for known in (run(0, 48), (*run(0, cut), *run(900, 903)))
        )
        assert found.length == found.known == common
        blocks = world.tree.blocks_of(found.node, found.length)
        assert len(blocks) == -(-common // 16)
        assert tuple(world.blocks.content[blocks].ravel()[:common]) == tokens[:common]


@pytest.mark.parametrize("first", [0, 900])
def test_prompts_that_differ_at_the_first_token_share_nothing(first: int) -> None:
    world = World()
    world.keep(run(1, 48))
    world.keep((first, *run(1, 48)))
    assert world.tree.nodes == 2 and 400 - len(world.blocks.free) == 3 + 3
    assert world.resumed(run(1, 50)) == 47 and world.resumed((first, *run(1, 49))) == 48


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_one_token_less_the_same_one_token_more(length: int, more: int) -> None:
    """Counts tokens in the tree; leaving out a request's last token is not the tree's task."""
    world = World()
    world.keep(run(0, length))
    assert world.resumed(run(0, length + more)) == (length if more >= 0 else 0)
    assert world.tree.match(key_from_tokens(run(0, length + more))).known == min(length, length + more)


def test_nested_inserts_reuse_what_is_there() -> None:
    """What each new insert retains: nothing of what its beginning has, and a copy of a block that begins before it."""
    world, used = World(), []
    for stop in (10, 20, 16, 48, 32, 48, 49):
        before = len(world.blocks.free)
        world.keep(run(0, stop))
        used.append(before - len(world.blocks.free))
    # 10: block 0. 20: copies of 0 and 1. 16: inside 0..20, nothing. 48: a copy of 1, and 2. 32: nothing. 49: block 3.
    assert used == [1, 2, 0, 2, 0, 0, 1]
    assert world.sequences() == {run(0, stop) for stop in (10, 20, 16, 48, 32, 49)}
