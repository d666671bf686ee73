"""The small parts of the cache: states by slot, what is known of what has gone, chances, expected lengths, alpha."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.blocks.cached_block_pool import CachedBlockPool
from hybridge.runtime.blocks.needs import CacheNeeds
from hybridge.runtime.blocks.sequence_memory import NONE, SequenceMemory
from hybridge.runtime.engines.paged import PoolSizes
from hybridge.runtime.prefix_cache.branch_lengths import BranchLengths
from hybridge.runtime.prefix_cache.ghosts import Ghosts
from hybridge.runtime.prefix_cache.kinds import Chances, Kind
from hybridge.runtime.prefix_cache.node import Root
from hybridge.runtime.prefix_cache.past_prompts import NoMemory, PastPrompts
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.radix_prefix import RadixPrefix
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.regrets import Regrets
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.stops import wanted_stops
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.token_tree import TreeMatch
from hybridge.runtime.prefix_cache.tuner import ALPHAS, AlphaTuner
from hybridge.runtime.prefix_cache.uses import StateUses
from hybridge.runtime.prefix_cache.worth import CacheCosts, ValueWorth


def test_a_pool_knows_what_only_the_cache_has() -> None:
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


@pytest.mark.parametrize("gone", [1, 5, 16, 17, 100])
def test_ghosts_are_told_from_strangers(gone: int) -> None:
    ghosts = Ghosts()
    ghosts.add("a", key_from_tokens(range(gone)))
    assert ghosts.knows("a", key_from_tokens(range(gone))) and ghosts.knows("a", key_from_tokens(range(gone + 9)))
    assert not ghosts.knows("b", key_from_tokens(range(gone)))
    assert not ghosts.knows("a", key_from_tokens(range(gone - 1)))
    assert not ghosts.knows("a", key_from_tokens([*range(gone - 1), 999, 5]))


def test_only_the_latest_ghosts_are_kept() -> None:
    ghosts = Ghosts(capacity=3)
    for first in range(5):
        ghosts.add("", key_from_tokens([first] * 20))
    assert [ghosts.knows("", key_from_tokens([first] * 20)) for first in range(5)] == [False, False, True, True, True]


def test_chances_follow_what_was_of_use() -> None:
    chances = Chances()
    before = chances.of(Kind.SPREAD)
    for _ in range(50):
        chances.taken(Kind.SPREAD)
    assert chances.of(Kind.SPREAD) < before / 5
    assert chances.changed() and not chances.changed()
    for _ in range(40):
        chances.used(Kind.SPREAD)
    assert chances.of(Kind.SPREAD) > 0.7


def test_lengths_are_expected_once_they_came_up_twice() -> None:
    lengths = BranchLengths()
    for length in (100, 200, 100):
        lengths.add(length)
    assert lengths.expected() == (100,)
    for length in range(1000, 1032):
        lengths.add(length)
    assert lengths.expected() == ()


def test_alpha_rises_where_a_few_beginnings_come_back_among_many_that_do_not() -> None:
    settings = PrefixCacheSettings(window=32, prompt_end=False)
    tuner = AlphaTuner(CacheCosts(1, 1_000_000, 1.0), 4, settings, alpha=ALPHAS[0])
    rng = np.random.default_rng(1)
    begins = [rng.integers(0, 99, 400).tolist() for _ in range(2)]
    for turn in range(200):
        prompt = begins[turn // 4 % 2] if turn % 4 == 0 else rng.integers(0, 99, 100).tolist()
        key = key_from_tokens([*prompt, *rng.integers(0, 99, 30).tolist()])
        tuner.begin(key[:-4], "")
        tuner.end(key, "")
    assert tuner.alpha > 0


def test_who_asks_for_what_is_missing_is_counted() -> None:
    regrets = Regrets(capacity=2)
    whole = key_from_tokens(range(100))
    for length in (40, 60):
        regrets.add("a", key_from_tokens(range(length)), Kind.END)
    assert regrets.ask("a", whole, 60) is None and regrets.ask("b", whole, 0) is None
    assert regrets.ask("a", key_from_tokens([*range(59), 7, 8]), 40) is None, "it parts before"
    assert regrets.ask("a", whole, 0) == Kind.END and regrets.ask("a", whole, 0) is None, "only the first use counts"
    assert [regrets.uses("a", key_from_tokens(range(n))) for n in (40, 59, 60)] == [0, 0, 2]
    regrets.add("a", key_from_tokens(range(60)), Kind.END)
    assert regrets.uses("a", key_from_tokens(range(60))) == 2, "what was counted stays"
    for first in (1, 2):
        regrets.add("a", key_from_tokens([first] * 20), Kind.END)
    assert regrets.uses("a", key_from_tokens(range(60))) == 0, "only the latest beginnings are kept"


def test_past_prompts_tell_parting_from_going_on() -> None:
    past = PastPrompts()
    said = list(range(50))
    past.add("", key_from_tokens(said))
    assert past.parted("", key_from_tokens([*said[:30], 99])) == 30
    assert past.parted("", key_from_tokens([*said, 99])) == past.parted("b", key_from_tokens(said)) == 0
    past.add("", key_from_tokens([*said[:30], 99, 98]))
    assert past.parted("", key_from_tokens([*said[:30], 77])) == 30, "a third one parts at the same place"


def test_only_the_latest_prompts_are_remembered() -> None:
    for past in (PastPrompts(prompts=2), PastPrompts(tokens=150)):
        for first in range(9):
            past.add("", key_from_tokens([first, *range(100, 139)]))
        known = [past.parted("", key_from_tokens([first, *range(100, 120), 7])) for first in range(9)]
        assert known[-3:] == [21] * 3 and known[:4] == [0] * 4


def uses_of(tokens: Sequence[int], *steps: tuple[int, Kind]) -> dict[int, tuple[int, Kind]]:
    """Resume at the nearest state and insert one after each (length, kind); uses and kind of all states at the end."""
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, worth=ValueWorth(CacheCosts(1, 1)))
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


def test_where_sequences_part_nobody_takes_the_place() -> None:
    assert uses_of(range(99), (10, Kind.BRANCH), (20, Kind.END)) == {10: (1, Kind.BRANCH), 20: (0, Kind.END)}
    found = uses_of(range(99), (10, Kind.SPREAD), (20, Kind.BRANCH))
    assert found == {10: (0, Kind.PASSED), 20: (1, Kind.BRANCH)}


def test_a_state_on_the_way_of_a_turn_hands_on_what_it_took_over() -> None:
    found = uses_of(range(99), (10, Kind.END), (20, Kind.PROMPT_END))
    assert found == {10: (0, Kind.PASSED), 20: (1, Kind.PROMPT_END)}
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, worth=ValueWorth(CacheCosts(1, 1)))
    uses, nodes = StateUses(tree), []
    for slot, (length, kind) in enumerate(((10, Kind.END), (20, Kind.PROMPT_END), (30, Kind.END))):
        nodes.append(tree.insert(key_from_tokens(range(length)), (), slot)[0])
        uses.inserted(nodes[-1], kind)
        if not slot:
            uses.resumed(nodes[0])  # one turn, which leaves the other two
    assert [(node.uses, node.kind) for node in nodes] == [(0, Kind.PASSED), (0, Kind.PASSED), (1, Kind.END)]


def test_a_kind_is_judged_by_states_of_which_it_is_known() -> None:
    worth = ValueWorth(CacheCosts(1, 1))
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, worth=worth)
    uses, before = StateUses(tree), worth.chances.of(Kind.SPREAD)
    nodes = [tree.insert(key_from_tokens([first] * 9), (), first)[0] for first in range(20)]
    for node in nodes:
        uses.inserted(node, Kind.SPREAD)
    assert worth.chances.of(Kind.SPREAD) == before, "nobody had the time to use them"
    uses.resumed(nodes[0])
    uses.resumed(nodes[0])
    assert worth.chances.of(Kind.SPREAD) == 2 / 5
    for node in nodes:
        uses.gone(node)
    assert worth.chances.of(Kind.SPREAD) == 2 / 24


@pytest.mark.parametrize(
    ("known", "branches", "ends", "parted", "wanted"),
    [
        (40, True, False, 0, [40]),
        (40, False, True, 0, [40]),
        (40, False, True, 70, [70]),
        (40, False, False, 70, [70, 40]),
        (70, True, False, 70, [70]),
        (70, False, True, 40, [70, 40]),
    ],
)
def test_a_prompt_stops_where_prompts_part(
    known: int, branches: bool, ends: bool, parted: int, wanted: list[int]
) -> None:
    """``ends``: the tree has lost what lay beyond."""
    settings = PrefixCacheSettings(prompt_end=False, spread=0)
    match = TreeMatch(Root(""), 0, known, branches, ends)
    stops = wanted_stops(settings, CacheNeeds(kv=True, state=True), match, 100, parted=parted)
    assert stops == [(length, Kind.BRANCH) for length in wanted]


def test_a_state_that_is_worth_less_is_not_taken_when_a_sequence_needs_the_slot() -> None:
    cache = RadixCache(
        PoolSizes(8, 4, 2), CacheNeeds(kv=True, state=True), PrefixCacheSettings(), ValueWorth(CacheCosts(1, 1))
    )
    memories = [SequenceMemory([]), SequenceMemory([])]
    for memory, value in zip(memories, (90.0, 3.0), strict=True):
        memory.prefix = RadixPrefix()
        memory.prefix.worth = value
    taken = {memories[0]: 7, memories[1]: 8}
    assert cache.checkpoint_to_skip(taken) is None, "there are free slots"
    node, _ = cache.tree.insert(key_from_tokens(range(9)), cache.pool.allocate(3), cache.slots.allocate())
    cache.slots.allocate()
    assert 3 < cache.tree.worth.of_state(node) < 90
    assert cache.checkpoint_to_skip(taken) is memories[1]
    assert cache.checkpoint_to_skip({memories[0]: 7}) is None, "the one in the tree is worth less"
    assert cache.checkpoint_to_skip({memories[1]: NONE}) is None


def test_a_state_that_is_asked_for_again_and_again_gets_its_place() -> None:
    tree = RadixTree(NoMemory(), NoMemory(), 1, has_kv=False, worth=ValueWorth(CacheCosts(1, 1)))
    uses, key = StateUses(tree), key_from_tokens(range(30))
    before = uses.expected("", key, Kind.CHUNK)
    for _ in range(3):
        uses.refused("", key, Kind.CHUNK)
        uses.asked("", key_from_tokens(range(40)), 0)
    assert before < 1 and uses.expected("", key, Kind.CHUNK) == 3
    node, _ = tree.insert(key, (), 0)
    uses.inserted(node, Kind.CHUNK)
    assert node.uses == 3


def test_the_next_chunk_replaces_the_state_of_a_chunk_only() -> None:
    """The chunk's own may have had to go, and another request may have left one at the same place."""
    cache = RadixCache(PoolSizes(8, 4, 2), CacheNeeds(kv=True, state=True), PrefixCacheSettings())
    blocks = cache.pool.allocate(3)
    node, _ = cache.tree.insert(key_from_tokens(range(9)), blocks, cache.slots.allocate())
    cache.pool.release(blocks)
    for kind, stays in ((Kind.PROMPT_END, True), (Kind.BRANCH, True), (Kind.CHUNK, False)):
        cache.uses.inserted(node, kind)
        cache._checkpoints.drop_chunk(node)
        assert (node.state is not None) == stays, kind
    assert not cache.tree.nodes and not cache.pool.used and not cache.slots.used


def test_a_chunk_state_is_forgone_when_nothing_else_can_go() -> None:
    cache = RadixCache(PoolSizes(8, 4, 2), CacheNeeds(kv=True, state=True), PrefixCacheSettings())
    memories = [SequenceMemory([]), SequenceMemory([])]
    for memory, value in zip(memories, (90.0, 3.0), strict=True):
        memory.prefix = RadixPrefix()
        memory.prefix.worth = value
    taken = {memory: cache.slots.allocate() for memory in memories}
    assert cache.checkpoint_to_skip(taken) is memories[1]
