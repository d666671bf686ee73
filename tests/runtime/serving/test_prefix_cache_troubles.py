"""Requests that get in each other's way in the prefix cache: races, ends in the middle, memory for next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from tests.runtime.serving.test_prefix_cache import cached_tokens, line, poison
from tests.runtime.serving.toy_loop import answers, make_request, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_greedy


def finish(loop: ServingLoop, engine: ToyPagedEngine) -> dict[tuple[int, int], tuple[int, ...]]:
    """The answers of all that is left, with NaN in unowned memory."""
    outputs = []
    while loop.busy:
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
    return answers(outputs)


def test_a_chunk_does_not_keep_the_state_out_that_comes_right_after_it() -> None:
    """A step ends one token before the prompts part, and no slot is left: the chunk's own becomes the other state's."""
    settings = PrefixCacheSettings(cached_states=2, prompt_checkpoints="branches", decode_interval=None)
    loop, _ = toy_loop(prefix_cache=settings, max_tokens=59, max_rows=1)
    assert loop.pools.sizes.num_slots == 3
    shared = line(1, 60)
    assert [cached_tokens(loop, shared + line(seed, 10)) for seed in (2, 3, 4)] == [0, 0, 60]


@pytest.mark.parametrize("groups", [3, 4, 5])
def test_as_many_states_as_groups_come_to_hold_one_for_each(groups: int) -> None:
    """Rows take slots while others are about to take states, which are of less use than those that are there."""
    settings = PrefixCacheSettings(cached_states=groups)
    loop, _ = toy_loop(prefix_cache=settings, max_rows=2, memory_bytes=20_000)
    assert loop.pools.sizes.num_slots == groups + 2
    begins, rng, outputs = [line(group, 60) for group in range(groups)], np.random.default_rng(groups), []
    for _ in range(20):
        for group in rng.permutation(groups):
            loop.add(make_request([*begins[group], *rng.integers(0, 61, 9).tolist()], 3))
    while loop.busy:
        outputs += loop.step()
        loop.scheduler.check_integrity()
    found = [output.piece.generation.cached_tokens for output in outputs if output.piece and output.piece.generation]
    assert found[-10 * groups :] == [60] * 10 * groups


@pytest.mark.parametrize("cancelled", [0, 1])
def test_one_of_two_racing_requests_is_cancelled_within_a_chunk(cancelled: int) -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=9), max_tokens=12)
    prompt = line(1, 60)
    racing = [loop.add(make_request(prompt, 4)), loop.add(make_request(prompt, 4))]
    for _ in range(3):
        poison(loop, engine)
        loop.step()
    loop.cancel(racing[cancelled])
    loop.scheduler.check_integrity()
    late = loop.add(make_request(prompt, 4))
    found = finish(loop, engine)
    right = tuple(toy_greedy(engine.config, prompt, 4))
    assert found == {(racing[1 - cancelled], 0): right, (late, 0): right}


def test_a_fork_survives_the_eviction_of_its_prefix() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=9))
    prompt = line(1, 30)
    cached_tokens(loop, prompt, 3)
    loop.add(make_request([*prompt, 5], 6, n=3))
    loop.step()
    cache = loop.prefix_cache
    while cache.evict_state() or cache.evict_kv():
        loop.scheduler.check_integrity()
    right = tuple(toy_greedy(engine.config, [*prompt, 5], 6))
    assert set(finish(loop, engine).values()) == {right}


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_prompts_around_one_block(length: int, layers: tuple[str, ...]) -> None:
    """Blocks have 4 tokens."""
    loop, engine = toy_loop(layers, prefix_cache=PrefixCacheSettings(cached_states=9))
    prompt = line(1, length)
    assert [cached_tokens(loop, prompt, 3) for _ in range(3)] == [0, length - 1, length - 1]
    assert loop.prefix_cache.metrics.misses["too_short"] == (3 if length == 1 else 0)
    longer = loop.add(make_request([*prompt, 7], 3))
    assert finish(loop, engine)[longer, 0] == tuple(toy_greedy(engine.config, [*prompt, 7], 3))


@pytest.mark.parametrize("rows", [1, 3])
def test_very_few_slots(rows: int) -> None:
    """As many slots as one sequence of full length leaves: one, whatever the rows."""
    cache = PrefixCacheSettings(cached_states=1, decode_interval=2)
    loop, engine = toy_loop(prefix_cache=cache, memory_bytes=25 * 32 + 16 * rows, max_rows=rows)
    rng = np.random.default_rng(rows)
    begin, expected = line(1, 20), {}
    for _ in range(12):
        prompt = [*begin[: int(rng.integers(1, 21))], *rng.integers(0, 61, int(rng.integers(0, 6))).tolist()]
        answer = tuple(toy_greedy(engine.config, prompt, 5))
        expected[loop.add(make_request(prompt, 5)), 0] = answer
    assert finish(loop, engine) == expected
    loop.prefix_cache.tree.clear()
    assert not loop.prefix_cache.tree.nodes and not loop.scheduler.manager.slots.used


@pytest.mark.parametrize("host_bytes", [0, 1, 400, 5_000])
def test_host_memory_of_almost_no_bytes(host_bytes: int) -> None:
    cache = PrefixCacheSettings(cached_states=2, host_bytes=host_bytes)
    loop, engine = toy_loop(prefix_cache=cache, memory_bytes=1_200, max_rows=2)
    rng = np.random.default_rng(7)
    begins = [line(seed, 25) for seed in range(4)]
    for turn in range(24):
        prompt = [*begins[turn % 4], *rng.integers(0, 61, 3).tolist()]
        id_ = loop.add(ServingRequest(make_request(prompt, 3).request, namespace="ab"[turn % 2]))
        assert finish(loop, engine)[id_, 0] == tuple(toy_greedy(engine.config, prompt, 3))
        host = loop.served_cache.host
        assert (host is None) == (host_bytes == 0) and (host is None or host.nbytes <= host_bytes)


def test_tenants_of_the_same_prompt_at_the_same_time() -> None:
    loop, _ = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=9))
    prompt = line(1, 40)
    for _ in range(2):
        outputs = []
        submitted = {loop.add(ServingRequest(make_request(prompt, 2).request, namespace=name)): name for name in "abc"}
        while loop.busy:
            outputs += loop.step()
        assert set(answers(outputs)) == {(id_, 0) for id_ in submitted}
    tree = loop.prefix_cache.tree
    roots = tree.namespaces()
    assert set(roots) == {"a", "b", "c"}
    blocks = [{block for node in root.walk() for block in node.blocks} for root in roots.values()]
    assert not blocks[0] & blocks[1] and not blocks[1] & blocks[2]
    assert [tree.match(key_from_tokens(prompt), name).length > 0 for name in "abcd"] == [True] * 3 + [False]


def test_a_prompt_of_full_length_leaves_memory_for_others() -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(cached_states=3))
    prompt = line(1, 96)
    loop.add(make_request(prompt, 1))
    finish(loop, engine)
    assert cached_tokens(loop, prompt) == 95
    with pytest.raises(RequestError, match="96"):
        loop.add(make_request([*prompt, 1], 1))


def test_states_are_evicted_while_a_step_has_failed_requests() -> None:
    """Failures, cancellations and evictions between steps, without a pause."""
    cache = PrefixCacheSettings(cached_states=3, decode_interval=2)
    loop, engine = toy_loop(prefix_cache=cache, memory_bytes=1_500, max_tokens=14, max_rows=3)
    rng = np.random.default_rng(11)
    begin = line(1, 30)
    expected, lost, outputs = {}, set(), []
    engine.fail_at = {5, 17, 31}
    for turn in range(120):
        if turn < 80 and rng.random() < 0.4:
            prompt = [*begin[: int(rng.integers(1, 31))], *rng.integers(0, 61, 4).tolist()]
            expected[loop.add(make_request(prompt, 4)), 0] = tuple(toy_greedy(engine.config, prompt, 4))
        if rng.random() < 0.1 and expected:
            key = list(expected)[int(rng.integers(len(expected)))]
            loop.cancel(key[0])
            lost.add(key)
        if rng.random() < 0.2:
            (loop.prefix_cache.evict_state if rng.random() < 0.5 else loop.prefix_cache.evict_kv)()
        poison(loop, engine)
        stepped = loop.step() if loop.busy else []
        lost |= {(output.request_id, 0) for output in stepped if output.error is not None}
        outputs += [output for output in stepped if output.error is None]
        loop.scheduler.check_integrity()
    found = answers(outputs)
    assert {key: found[key] for key in found} == {key: expected[key] for key in found}
    assert set(expected) - set(found) <= lost and len(found) > 10
