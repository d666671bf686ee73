"""Requests that begin alike, with a prefix cache: the tokens of each alone, and only new ones computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_greedy


def poison(loop: ServingLoop, engine: ToyPagedEngine) -> None:
    """NaN in every block and slot without an owner, the cache included."""
    manager = loop.scheduler.manager
    sources = {source for source, _ in loop.scheduler._slot_copies}
    blocks = [b for b in range(manager.pool.num_blocks) if not manager.pool.references(b)]
    slots = [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    engine.poison(blocks, slots)


def cached_tokens(loop: ServingLoop, prompt: Sequence[int], new: int = 1) -> int:
    """Run one request alone; the tokens of its prompt that were not computed."""
    id_ = loop.add(make_request(prompt, new))
    return next(o.piece.generation.cached_tokens for o in run_all(loop) if o.request_id == id_ and o.piece.generation)


@pytest.mark.parametrize("memory_bytes", [10_000, 1_500, 900])
@pytest.mark.parametrize(
    ("layers", "window"), [(HYBRID, None), (HYBRID, 5), (PURE_ATTENTION, None), (PURE_MAMBA, None)], ids=str
)
def test_tokens_are_those_of_each_alone(layers: Sequence[str], window: int | None, memory_bytes: int) -> None:
    cache = PrefixCacheSettings(decode_interval=5, cached_states=6)
    loop, engine = toy_loop(layers, window, prefix_cache=cache, memory_bytes=memory_bytes)
    rng = np.random.default_rng(memory_bytes)
    begins = [rng.integers(0, 61, 30).tolist() for _ in range(3)]
    expected: dict[tuple[int, int], tuple[int, ...]] = {}
    outputs = []
    while len(expected) < 40 or loop.busy:
        while len(expected) < 40 and rng.random() < 0.5:
            shared = begins[int(rng.integers(3))][: int(rng.integers(1, 31))]
            prompt = shared + rng.integers(0, 61, int(rng.integers(0, 20))).tolist()
            request = make_request(prompt, int(rng.integers(1, 20)))
            expected[loop.add(request), 0] = tuple(toy_greedy(engine.config, prompt, request.request.max_new_tokens))
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
    assert answers(outputs) == expected
    assert loop.prefix_cache.metrics.hit_tokens > 0 or memory_bytes < 1_500


def test_a_chat_computes_only_what_is_new() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    rng = np.random.default_rng(1)
    history: list[int] = []
    for turn in range(3):
        prompt = history + rng.integers(0, 61, 9).tolist()
        answer = toy_greedy(engine.config, prompt, 7)
        before = engine.tokens
        assert cached_tokens(loop, prompt, 7) == (len(history) - 1 if turn else 0)
        # The last token of an answer was never fed, the last of this one is not either.
        assert engine.tokens - before == 9 + 7 - 1 + (turn > 0)
        history = prompt + answer


def line(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


@pytest.mark.parametrize(
    ("length", "found"), [(39, 0), (40, 39), (41, 39), (44, 39), (45, 44), (60, 44)], ids=lambda value: str(value)
)
def test_one_token_less_the_same_one_token_more(length: int, found: int) -> None:
    """After 40 tokens and 5 new ones, states are at 39 (before the prompt's last token) and at 44."""
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    prompt = line(1, 40)
    cached_tokens(loop, prompt, 5)
    later = (prompt + toy_greedy(engine.config, prompt, 5) + line(2, 20))[:length]
    assert cached_tokens(loop, later) == found


def test_a_prompt_that_parts_inside_a_node_leaves_a_state_there() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    shared = line(1, 30)
    assert [cached_tokens(loop, shared + line(seed, 10)) for seed in (2, 3, 4)] == [0, 0, 30]
    assert loop.prefix_cache.metrics.misses == {"no_kv": 1, "no_state": 1}
    assert loop.prefix_cache.metrics.recomputed_tokens == 30


def test_a_state_that_went_while_its_kv_stayed() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20, prompt_checkpoints="branches"))
    prompt = line(1, 20)
    for tail in (2, 3):
        cached_tokens(loop, prompt + line(tail, 9))
    tree = loop.prefix_cache.tree
    inner = next(node for node in tree.walk() if node.attached and node.end == 20)
    tree.drop_state(inner)
    assert cached_tokens(loop, prompt + line(4, 9)) == 0
    assert inner.state is not None, "a place where sequences part gets its state back"
    assert cached_tokens(loop, prompt + line(5, 9)) == 20


def test_identical_prompts_at_the_same_time() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    prompt = line(1, 33)
    for _ in range(5):
        loop.add(make_request(prompt, 4))
    assert set(answers(run_all(loop)).values()) == {tuple(toy_greedy(engine.config, prompt, 4))}
    assert cached_tokens(loop, prompt) == 32


def test_a_pool_without_a_slot_to_spare_moves_the_state() -> None:
    """One slot in all: the tree has it between requests, and hands it over when it is resumed."""
    needed = 25 * 32 + 16
    cache = PrefixCacheSettings(cached_states=0)
    loop, engine = toy_loop(prefix_cache=cache, memory_bytes=needed, max_rows=1)
    assert loop.pools.sizes.num_slots == 1
    prompt = line(1, 20)
    cached_tokens(loop, prompt, 5)
    longer = prompt + toy_greedy(engine.config, prompt, 5) + [7]
    assert cached_tokens(loop, longer, 3) == 24
    assert loop.prefix_cache.tree.states == 1


@pytest.mark.parametrize("chunk", [1, 63, 64, 65, 1000])
def test_chunks_of_any_size(chunk: int) -> None:
    cache = PrefixCacheSettings(cached_states=20)
    budget = min(chunk, 70)
    loop, engine = toy_loop(
        prefix_cache=cache, max_tokens=budget, max_rows=min(4, budget), max_seq_len=256, memory_bytes=20_000
    )
    prompt = line(1, 200)
    id_ = loop.add(make_request(prompt, 3))
    for _ in range(-(-150 // budget)):
        poison(loop, engine)
        loop.step()
    # Half-way, a second prompt comes that branches off.
    begun = loop.scheduler.sequences[id_].memory.length
    second = loop.add(make_request(prompt[:begun] + line(2, 9), 3))
    found = answers(run_all(loop))
    assert found[id_, 0] == tuple(toy_greedy(engine.config, prompt, 3))
    assert found[second, 0] == tuple(toy_greedy(engine.config, prompt[:begun] + line(2, 9), 3))
    assert cached_tokens(loop, prompt) == 199


def test_a_cancelled_prompt_leaves_what_it_computed() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20), max_tokens=12)
    prompt = line(1, 60)
    id_ = loop.add(make_request(prompt, 3))
    for _ in range(3):
        loop.step()
    loop.cancel(id_)
    loop.scheduler.check_integrity()
    assert cached_tokens(loop, prompt) == 36


def test_a_failed_step_leaves_nothing() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    loop.add(make_request(line(1, 60), 3))
    engine.fail_at = {1}
    run_all(loop)
    assert not loop.prefix_cache.tree.nodes and not loop.scheduler.manager.slots.used


def test_tenants_share_nothing() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=20))
    prompt = line(1, 30)
    cached_tokens(loop, prompt, 4)
    loop.add(ServingRequest(make_request(prompt, 1).request, namespace="tenant"))
    assert [output.piece.generation.cached_tokens for output in run_all(loop)] == [0]
    assert loop.prefix_cache.metrics.misses["namespace"] == 1


def test_states_are_stored_during_decoding() -> None:
    settings = PrefixCacheSettings(cached_states=20, decode_interval=4)
    loop, engine = toy_loop(prefix_cache=settings)
    prompt = line(1, 10)
    loop.add(make_request(prompt, 60))
    for _ in range(25):
        loop.step()
    ends = {node.end for node in loop.prefix_cache.tree.walk() if node.state is not None}
    assert ends == {9, *range(14, 34, 4)}
    said = prompt + toy_greedy(engine.config, prompt, 60)
    second = loop.add(make_request(said[:29], 1))
    found = [o.piece.generation.cached_tokens for o in run_all(loop) if o.request_id == second and o.piece.generation]
    assert found == [26]


@pytest.mark.parametrize("params", [{"beam_width": 3, "n": 2}, {"n": 3, "temperature": 0.9, "seed": 4}], ids=str)
def test_several_answers_are_the_same_with_the_cache(params: dict) -> None:
    found = []
    for cache in ("off", "radix"):
        loop, _ = toy_loop(prefix_cache=cache)
        for tail in (2, 3, 4):
            loop.add(make_request(line(1, 30) + line(tail, 5), 6, **params))
            found.append(answers(run_all(loop)))
    assert found[:3] == found[3:]
    assert loop.prefix_cache.metrics.hit_tokens == 30
