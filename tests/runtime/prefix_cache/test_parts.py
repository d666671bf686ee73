"""The small parts of the cache: states by slot, what is known of what has gone, chances, expected lengths, alpha."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.blocks.kept_block_pool import KeptBlockPool
from runtime.blocks.sequence_memory import NONE
from runtime.blocks.slot_pool import SlotPool
from runtime.engines.paged import PoolSizes
from runtime.prefix_cache.branch_lengths import BranchLengths
from runtime.prefix_cache.ghosts import Ghosts
from runtime.prefix_cache.kinds import Chances, Kind
from runtime.prefix_cache.settings import PrefixCacheSettings
from runtime.prefix_cache.state_pool import StatePool
from runtime.prefix_cache.token_key import key_from_tokens
from runtime.prefix_cache.tuner import ALPHAS, AlphaTuner
from runtime.prefix_cache.worth import CacheCosts
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config


def test_a_state_pool_zeroes_copies_and_forks() -> None:
    engine = ToyPagedEngine(paged_config(HYBRID))
    engine.allocate_pools(PoolSizes(1, 4, 3))
    pool = StatePool(SlotPool(3), engine)
    first = pool.allocate()
    assert not engine.states[first].any(), "a slot that nobody zeroed"
    engine.states[first] = 7, 2
    second = pool.fork_from(first)
    third = pool.allocate()
    pool.copy_from(second, third)
    pool.copy_from(third, third)
    assert engine.states[[first, second, third]].tolist() == [[7, 2]] * 3
    assert pool.free == 0 and pool.allocate() == pool.fork_from(first) == NONE
    pool.release(second)
    assert pool.allocate() == second and not engine.states[second].any()


def test_a_pool_knows_what_only_the_cache_has() -> None:
    rng = np.random.default_rng(0)
    pool = KeptBlockPool(6)
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
            pool.keep([block])
            kept[block] += 1
        elif action == 4 and kept[block]:
            pool.drop([block])
            kept[block] -= 1
        assert pool.idle == sum(k > 0 and not o for o, k in zip(others, kept, strict=True))
        assert pool.kept == sum(k > 0 for k in kept)
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
        tuner.begin(key, "")
        tuner.end(key, "")
    assert tuner.alpha > 0
