"""The small parts of the cache: evicted states, past prompts, expected lengths, uses, positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.blocks.cached_block_pool import CachedBlockPool
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.prefix_cache.branch_lengths import BranchLengths
from hybridge.runtime.prefix_cache.checkpoint_kind import CheckpointKind as Kind
from hybridge.runtime.prefix_cache.checkpoint_positions import checkpoint_positions
from hybridge.runtime.prefix_cache.evicted_prefixes import EvictedPrefixes
from hybridge.runtime.prefix_cache.eviction_history import EvictionHistory
from hybridge.runtime.prefix_cache.eviction_policy import CostAwareEviction
from hybridge.runtime.prefix_cache.node import Root
from hybridge.runtime.prefix_cache.past_prompts import NoMemory, PastPrompts
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.token_tree import TreeMatch
from hybridge.runtime.prefix_cache.uses import StateUses


def test_a_pool_knows_which_blocks_only_the_cache_uses() -> None:
    rng = np.random.default_rng(0)
    pool = CachedBlockPool(6)
    others, kept = [0] * 6, [0] * 6
    for _ in range(600):
        block, action = int(rng.integers(6)), int(rng.integers(5))
        held = others[block] + kept[block]
        if action == 0 and pool.free:
            others[pool.allocate(1)[0]] += 1
        elif action == 1 and held:
            pool.retain([block])
            others[block] += 1
        elif action == 2 and others[block]:
            pool.release([block])
            others[block] -= 1
        elif action == 3 and held:
            pool.retain_cached([block])
            kept[block] += 1
        elif action == 4 and kept[block]:
            pool.release_cached([block])
            kept[block] -= 1
        assert pool.evictable == sum(k > 0 and not o for o, k in zip(others, kept, strict=True))
        assert pool.cached == sum(k > 0 for k in kept)
        assert [pool.references(b) for b in range(6)] == [o + k for o, k in zip(others, kept, strict=True)]


@pytest.mark.parametrize("length", [1, 5, 16, 17, 100])
def test_evicted_prefixes_are_distinguished_from_new_ones(length: int) -> None:
    evicted = EvictedPrefixes()
    evicted.add("a", key_from_tokens(range(length)))
    assert all(evicted.knows("a", key_from_tokens(range(length + more))) for more in (0, 9))
    assert not evicted.knows("b", key_from_tokens(range(length)))
    assert not evicted.knows("a", key_from_tokens(range(length - 1)))
    assert not evicted.knows("a", key_from_tokens([*range(length - 1), 999, 5]))


def test_only_the_latest_evicted_prefixes_are_known() -> None:
    evicted = EvictedPrefixes(capacity=3)
    for first in range(5):
        evicted.add("", key_from_tokens([first] * 20))
    assert [evicted.knows("", key_from_tokens([n] * 20)) for n in range(5)] == [False, False, True, True, True]


def test_lengths_are_expected_once_they_came_up_twice() -> None:
    lengths = BranchLengths()
    for length in (100, 200, 100):
        lengths.add(length)
    assert lengths.expected() == (100,)
    for length in range(1000, 1032):
        lengths.add(length)
    assert lengths.expected() == ()


def test_prompts_that_ask_for_an_evicted_state_are_counted() -> None:
    history = EvictionHistory(capacity=2)
    whole = key_from_tokens(range(100))
    for length in (40, 60):
        history.add("a", key_from_tokens(range(length)))
    history.ask("a", whole, 60)
    history.ask("b", whole, 0)
    history.ask("a", key_from_tokens([*range(59), 7, 8]), 40)  # branches off before
    assert history.uses("a", key_from_tokens(range(60))) == 0
    for _ in range(2):
        history.ask("a", whole, 0)
    assert [history.uses("a", key_from_tokens(range(n))) for n in (40, 59, 60)] == [0, 0, 2]
    history.add("a", key_from_tokens(range(60)))
    assert history.uses("a", key_from_tokens(range(60))) == 2, "what was counted stays"
    for first in (1, 2):
        history.add("a", key_from_tokens([first] * 20))
    assert history.uses("a", key_from_tokens(range(60))) == 0, "only the latest beginnings are known"


def test_past_prompts_tell_branching_from_continuing() -> None:
    past = PastPrompts()
    said = list(range(50))
    past.add("", key_from_tokens(said))
    assert past.branch_point("", key_from_tokens([*said[:30], 99])) == 30
    assert past.branch_point("", key_from_tokens([*said, 99])) == past.branch_point("b", key_from_tokens(said)) == 0
    past.add("", key_from_tokens([*said[:30], 99, 98]))
    assert past.branch_point("", key_from_tokens([*said[:30], 77])) == 30, "a third one parts at the same place"


def test_only_the_latest_prompts_are_remembered() -> None:
    for past in (PastPrompts(prompts=2), PastPrompts(tokens=150)):
        for first in range(9):
            past.add("", key_from_tokens([first, *range(100, 139)]))
        known = [past.branch_point("", key_from_tokens([first, *range(100, 120), 7])) for first in range(9)]
        assert known[-3:] == [21] * 3 and known[:4] == [0] * 4


def test_what_past_prompts_share_counts_once() -> None:
    """150 tokens are 30 that all begin with, and 20 more of each of six."""
    past = PastPrompts(tokens=150)
    for first in range(100, 109):
        past.add("", key_from_tokens([*range(30), first, *range(200, 219)]))
    known = [past.branch_point("", key_from_tokens([*range(30), n, *range(200, 210), 7])) for n in range(100, 109)]
    assert known == [30] * 3 + [41] * 6


def uses_of(tokens: Sequence[int], *steps: tuple[int, Kind]) -> dict[int, tuple[int, Kind]]:
    """Resume at the nearest state and insert one after each (length, kind); uses and kind of all states at the end."""
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, policy=CostAwareEviction())
    uses = StateUses(tree)
    for slot, (length, kind) in enumerate(steps):
        match = tree.match(key_from_tokens(tokens[:length]))
        if match.length:
            uses.resumed(match.node)
        uses.inserted(tree.insert(key_from_tokens(tokens[:length]), (), slot)[0], kind)
    return {node.end: (node.uses, node.kind) for node in tree.walk() if node.state is not None}


def test_the_next_turn_of_a_chat_takes_the_place_of_the_last() -> None:
    found = uses_of(range(99), (10, Kind.END), (20, Kind.END), (30, Kind.END))
    assert found == {10: (0, Kind.PASSED), 20: (0, Kind.PASSED), 30: (2, Kind.END)}


def test_where_sequences_branch_a_state_is_not_replaced() -> None:
    assert uses_of(range(99), (10, Kind.BRANCH), (20, Kind.END)) == {10: (1, Kind.BRANCH), 20: (0, Kind.END)}
    found = uses_of(range(99), (10, Kind.SPREAD), (20, Kind.BRANCH))
    assert found == {10: (0, Kind.PASSED), 20: (1, Kind.BRANCH)}


def test_a_state_within_a_turn_passes_on_its_inherited_uses() -> None:
    found = uses_of(range(99), (10, Kind.END), (20, Kind.PROMPT_END))
    assert found == {10: (0, Kind.PASSED), 20: (1, Kind.PROMPT_END)}
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, policy=CostAwareEviction())
    uses, nodes = StateUses(tree), []
    for slot, (length, kind) in enumerate(((10, Kind.END), (20, Kind.PROMPT_END), (30, Kind.END))):
        nodes.append(tree.insert(key_from_tokens(range(length)), (), slot)[0])
        uses.inserted(nodes[-1], kind)
        if not slot:
            uses.resumed(nodes[0])  # one turn, which leaves the other two
    assert [(node.uses, node.kind) for node in nodes] == [(0, Kind.PASSED), (0, Kind.PASSED), (1, Kind.END)]


@pytest.mark.parametrize(("above", "kind"), [(Kind.SPREAD, Kind.PROMPT_END), (Kind.END, Kind.BRANCH)])
def test_a_state_that_serves_others_than_the_new_one_stays(above: Kind, kind: Kind) -> None:
    """Nothing went on from it, and not both of them are where sequences branch or anywhere."""
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, policy=CostAwareEviction())
    uses, nodes = StateUses(tree), []
    for slot, (length, each) in enumerate(((10, above), (20, kind))):
        nodes.append(tree.insert(key_from_tokens(range(length)), (), slot)[0])
        uses.inserted(nodes[-1], each)
    assert [node.kind for node in nodes] == [above, kind]


@pytest.mark.parametrize(
    ("known", "branch_point", "found"),
    [(40, 0, [40]), (40, 70, [70, 40]), (70, 70, [70]), (20, 10, []), (20, 30, [30])],
)
def test_a_prompt_leaves_states_where_prompts_branch(known: int, branch_point: int, found: list[int]) -> None:
    """Behind the 20 tokens with which it begins."""
    match = TreeMatch(Root(""), 20, known, False)
    positions = checkpoint_positions(match, 100, branch_point, early=False)
    assert positions == [(length, Kind.BRANCH) for length in found]


def test_a_new_prompt_leaves_states_early() -> None:
    new, known = TreeMatch(Root(""), 0, 0, False), TreeMatch(Root(""), 0, 600, False)
    end = (999, Kind.PROMPT_END)
    assert checkpoint_positions(new, 1000) == [end, (750, Kind.SPREAD), (500, Kind.SPREAD), (250, Kind.SPREAD)]
    assert checkpoint_positions(new, 1000, expected=(300, 1200)) == [end, (300, Kind.EXPECTED)]
    assert checkpoint_positions(known, 1000, expected=(700,)) == [end, (600, Kind.BRANCH)]
    assert checkpoint_positions(new, 50) == [(49, Kind.PROMPT_END)], "too short for more"
    assert checkpoint_positions(new, 128) == [(127, Kind.PROMPT_END)], "less than 64 tokens apart"
    assert checkpoint_positions(new, 129) == [(128, Kind.PROMPT_END), (64, Kind.SPREAD)]
    assert checkpoint_positions(new, 1000, early=False) == []


def test_a_prompt_leaves_states_where_its_turns_end() -> None:
    known = TreeMatch(Root(""), 600, 600, False)
    end, turns = (999, Kind.PROMPT_END), [(900, Kind.TURN), (700, Kind.TURN)]
    assert checkpoint_positions(known, 1000, given=(500, 700, 900, 1000)) == [end, *turns]
    assert checkpoint_positions(known, 1000, given=(700, 990)) == [(990, Kind.TURN), (700, Kind.TURN)]
    assert checkpoint_positions(known, 1000, early=False, given=(700,)) == [(700, Kind.TURN)]


def test_a_checkpoint_of_less_value_is_skipped_when_a_sequence_needs_the_slot() -> None:
    cache = RadixCache(PoolSizes(8, 4, 2), CacheNeeds(kv=True, state=True), PrefixCacheSettings(), CostAwareEviction())
    memories = [SequenceMemory([]), SequenceMemory([])]
    for memory, value in zip(memories, (90.0, 3.0), strict=True):
        memory.prefix = RadixPrefix()
        memory.prefix.value = value
    taken = {memories[0]: 7, memories[1]: 8}
    assert cache.checkpoint_to_skip(taken) is None, "there are free slots"
    cache.tree.insert(key_from_tokens(range(9)), cache.pool.allocate(3), cache.slots.allocate())
    cache.slots.allocate()
    assert 3 < cache.tree.least_state() < 90
    assert cache.checkpoint_to_skip(taken) is memories[1]
    assert cache.checkpoint_to_skip({memories[0]: 7}) is None, "the one in the tree is of less value"
    assert cache.checkpoint_to_skip({memories[1]: NONE}) is None


def test_a_state_that_is_requested_repeatedly_is_admitted() -> None:
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, policy=CostAwareEviction())
    uses, key = StateUses(tree), key_from_tokens(range(30))
    before = uses.expected("", key, Kind.DECODE)
    for _ in range(3):
        uses.refused("", key)
        uses.looked_up("", key_from_tokens(range(40)), 0)
    assert before < 1 and uses.expected("", key, Kind.DECODE) == 3
    node, _ = tree.insert(key, (), 0)
    uses.inserted(node, Kind.DECODE)
    assert node.uses == 3


def test_a_checkpoint_is_skipped_when_no_state_can_be_evicted() -> None:
    cache = RadixCache(PoolSizes(8, 4, 2), CacheNeeds(kv=True, state=True), PrefixCacheSettings())
    memories = [SequenceMemory([]), SequenceMemory([])]
    for memory, value in zip(memories, (90.0, 3.0), strict=True):
        memory.prefix = RadixPrefix()
        memory.prefix.value = value
    taken = {memory: cache.slots.allocate() for memory in memories}
    assert cache.checkpoint_to_skip(taken) is memories[1]
