"""What comes into the tree from host memory costs the others nothing that it does not need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.serving.loop import ServingLoop
from tests.runtime.serving.test_prefix_cache import cached_tokens, line
from tests.runtime.serving.test_prefix_cache_pressure import kept, pin
from tests.runtime.serving.toy_loop import make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_state

ENDS_ONLY = {"prompt_checkpoints": "none", "decode_interval": None}


class Copied:
    """A prefix of the tree in host memory."""

    def __init__(self, loop: ServingLoop, engine: ToyPagedEngine, tokens: Sequence[int]) -> None:
        tree = loop.prefix_cache.tree
        match = tree.match(key_from_tokens(tokens))
        assert match.length == len(tokens)
        self._blocks = [engine.swap_out([block], []) for block in tree.blocks_of(match.node, match.length)]
        self._state = None if match.node.state is None else engine.swap_out([], [match.node.state])

    def block(self, index: int) -> HostCopy:
        return self._blocks[index]

    def state(self) -> HostCopy:
        assert self._state is not None
        return self._state


def opened(layers: tuple[str, ...], blocks: int, rows: int, states: int) -> tuple[ServingLoop, ToyPagedEngine]:
    cache = PrefixCacheSettings(cached_states=states, policy="lru", **ENDS_ONLY)
    memory = blocks * 32 * (layers != PURE_MAMBA) + 16 * (rows + states) * (layers != PURE_ATTENTION)
    return toy_loop(layers, prefix_cache=cache, max_rows=rows, memory_bytes=memory)


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=str)
def test_cached_tokens_take_no_memory_from_others(layers: tuple[str, ...]) -> None:
    """A session that is loaded twice, in pools without a free slot."""
    loop, engine = opened(layers, 26, 1, 2)
    prompts = [line(seed, 18) for seed in (1, 2, 3)]
    for prompt in prompts:
        cached_tokens(loop, prompt, 1)
    assert [kept(loop, prompt) for prompt in prompts] == [18, 18, 18]
    device = loop.served_cache.device
    for prompt in prompts:
        for _ in range(2):
            assert device.copy_in(key_from_tokens(prompt), "", Copied(loop, engine, prompt))
    assert [kept(loop, prompt) for prompt in prompts] == [18, 18, 18]
    assert not loop.prefix_cache.metrics.evicted_states and not loop.prefix_cache.metrics.restored_states
    # It was of use: the one that was loaded first goes first.
    loop.prefix_cache.evict_kv()
    assert [kept(loop, prompt) for prompt in prompts] == [0, 18, 18]
    loop.scheduler.check_integrity()


def test_a_pinned_prefix_can_be_loaded_when_no_other_slot_is_left() -> None:
    loop, engine = opened(HYBRID, 60, 2, 0)
    pin(loop, line(1, 18), "system")
    loop.add(make_request(line(2, 20), 30))
    loop.step()
    assert not loop.prefix_cache.states.free
    copied = Copied(loop, engine, line(1, 18))
    assert loop.served_cache.device.copy_in(key_from_tokens(line(1, 18)), "", copied)
    run_all(loop)


def test_a_prefix_without_enough_blocks_costs_no_state() -> None:
    loop, engine = opened(HYBRID, 30, 2, 1)
    prompts = [line(seed, 6) for seed in (1, 2)]
    large = line(3, 60)
    cached_tokens(loop, large, 1)
    copied = Copied(loop, engine, large)
    loop.prefix_cache.tree.clear()
    for prompt in prompts:
        cached_tokens(loop, prompt, 1)
    loop.add(make_request(line(4, 80), 10))
    loop.step()
    assert loop.prefix_cache.states.unowned == 0 and loop.prefix_cache.states.free == 2
    assert not loop.served_cache.device.copy_in(key_from_tokens(large), "", copied)
    assert [kept(loop, prompt) for prompt in prompts] == [6, 6] and not loop.prefix_cache.metrics.restored_blocks
    run_all(loop)


@pytest.mark.parametrize("policy", ["lru", "value"])
@pytest.mark.parametrize(("rows", "states"), [(2, 0), (3, 0), (3, 1), (4, 2)])
def test_the_first_request_keeps_its_prefix(rows: int, states: int, policy: str) -> None:
    """Others, whose states are in host memory, come at the same time, and there is a slot for some of them only."""
    for first in range(rows + states + 2):
        cache = PrefixCacheSettings(cached_states=states, host_bytes=100_000, policy=policy, **ENDS_ONLY)
        loop, _ = toy_loop(prefix_cache=cache, max_rows=rows, memory_bytes=60 * 32 + 16 * (rows + states))
        prompts = [line(seed, 20) for seed in range(1, rows + states + 3)]
        for prompt in prompts:
            cached_tokens(loop, prompt, 1)
        assert sum(kept(loop, prompt) == 20 for prompt in prompts) == rows + states
        others = [prompt for prompt in prompts if prompt is not prompts[first]]
        for prompt in [prompts[first], *others][:rows]:
            loop.add(make_request([*prompt, 5, 6], 1))
        sequences = list(loop.scheduler.sequences.values())
        run_all(loop)
        assert sequences[0].cached_tokens == 20


def test_clearing_leaves_what_is_locked_and_nothing_else() -> None:
    """States above a locked node are of no use to its holder."""
    loop, engine = opened(HYBRID, 60, 1, 6)
    shared = line(1, 18)
    cached_tokens(loop, shared, 1)
    cached_tokens(loop, [*shared, *line(2, 9)], 1)
    tree = loop.prefix_cache.tree
    node = tree.match(key_from_tokens([*shared, *line(2, 9)])).node
    assert tree.states == 2
    tree.lock(node)
    tree.clear()
    assert tree.states == 1 and node.state is not None
    assert engine.states[node.state].tolist() == toy_state([*shared, *line(2, 9)]).tolist()
    assert np.isfinite(engine.kv[tree.blocks_of(node)].ravel()[: node.end]).all()
    tree.unlock(node)
    tree.clear()
    assert not tree.nodes and not loop.scheduler.manager.pool.used
