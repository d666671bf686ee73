"""Pinned prefixes: they stay whatever happens, and memory that was promised stays available."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.pinned import PinnedPrefix, PrefixEvictedError, checked_name
from hybridge.runtime.serving.request import Output, ServingRequest
from tests.runtime.serving.test_prefix_cache import cached_tokens, line, poison
from tests.runtime.serving.test_prefix_cache_pressure import kept, pin
from tests.runtime.serving.test_prefix_cache_troubles import finish
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_greedy

SYSTEM = line(1, 30)
LAYERS = pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=str)


def opened(layers: tuple[str, ...] = HYBRID, rows: int = 3, **cache: Any) -> tuple[ServingLoop, ToyPagedEngine]:
    settings = PrefixCacheSettings(**{"cached_states": 6, **cache})
    return toy_loop(layers, prefix_cache=settings, memory_bytes=70 * 32 + 16 * 12, max_rows=rows)


def empty(loop: ServingLoop) -> None:
    """Evict all that may go."""
    while loop.prefix_cache.evict_state() or loop.prefix_cache.evict_kv():
        loop.scheduler.check_integrity()


@LAYERS
@pytest.mark.parametrize("policy", ["lru", "value"])
def test_it_outlives_any_traffic(layers: tuple[str, ...], policy: str) -> None:
    loop, engine = opened(layers, policy=policy, cached_states=2)
    pin(loop, SYSTEM, "system")
    rng, outputs, expected = np.random.default_rng(3), [], {}
    for turn in range(40):
        shared = SYSTEM[: int(rng.integers(0, 31))] if turn % 2 else []
        prompt = [*shared, *rng.integers(0, 61, int(rng.integers(1, 50))).tolist()]
        expected[loop.add(make_request(prompt, 6)), 0] = tuple(toy_greedy(engine.config, prompt, 6))
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
        assert kept(loop, SYSTEM) == 30
        if turn % 7 == 0:
            empty(loop)
    while loop.busy:
        outputs += loop.step()
        assert kept(loop, SYSTEM) == 30
    assert answers(outputs) == expected
    empty(loop)
    loop.served_cache.pinned.drop("system")
    loop.prefix_cache.tree.clear()
    manager = loop.scheduler.manager
    assert not (loop.prefix_cache.tree.nodes or manager.pool.used or manager.slots.used)


@LAYERS
@pytest.mark.parametrize("length", [1, 2, 15, 28, 29, 30, 31])
def test_prompts_that_end_inside_or_right_after_it(layers: tuple[str, ...], length: int) -> None:
    """A prompt leaves its last token out; a state holds for its own length only."""
    loop, engine = opened(layers)
    pin(loop, SYSTEM, "system")
    empty(loop)
    prompt = [*SYSTEM, 5][:length]
    state = layers != PURE_ATTENTION
    found = 30 if length == 31 else 0 if state else length - 1
    assert cached_tokens(loop, prompt, 3) == found
    # The same again, from the state before its last token.
    id_ = loop.add(make_request(prompt, 3))
    assert finish(loop, engine)[id_, 0] == tuple(toy_greedy(engine.config, prompt, 3))
    assert cached_tokens(loop, prompt) == length - 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_nested_ones_are_dropped_in_any_order(order: tuple[int, ...]) -> None:
    loop, _ = opened()
    prefixes = [SYSTEM, SYSTEM[:17], [*SYSTEM[:23], *line(5, 7)]]
    for number, tokens in enumerate(prefixes):
        pin(loop, tokens, str(number))
    left = set(order)
    for number in order:
        empty(loop)
        assert all(kept(loop, prefixes[each]) == len(prefixes[each]) for each in left)
        loop.served_cache.pinned.drop(str(number))
        left.remove(number)
        loop.scheduler.check_integrity()
    empty(loop)
    assert not loop.prefix_cache.tree.nodes and not loop.scheduler.manager.pool.used


def test_two_names_of_the_same_tokens() -> None:
    loop, _ = opened()
    pin(loop, SYSTEM, "a")
    used = loop.prefix_cache.pins.counts()
    pin(loop, SYSTEM, "b")
    assert loop.prefix_cache.pins.counts() == used and used[1] == 1, "they hold the same memory"
    loop.served_cache.pinned.drop("a")
    empty(loop)
    assert kept(loop, SYSTEM) == 30
    loop.served_cache.pinned.drop("b")
    empty(loop)
    assert kept(loop, SYSTEM) == 0
    with pytest.raises(RequestError, match="cache it first"):
        loop.served_cache.pinned.drop("b")


def test_tenants_pin_the_same_tokens_under_names_of_their_own() -> None:
    loop, _ = opened()
    names = []
    for tenant in ("", "a", "b", "a"):
        names.append(checked_name(None, SYSTEM, tenant, loop.served_cache.pinned.names()))
        pin(loop, SYSTEM, names[-1], tenant)
    assert names == ["prefix 0", "prefix 1", "prefix 2", "prefix 1"]
    empty(loop)
    assert [kept(loop, SYSTEM, tenant) for tenant in ("", "a", "b", "c")] == [30, 30, 30, 0]


def test_it_is_split_and_stays() -> None:
    loop, engine = opened()
    pin(loop, SYSTEM, "system")
    for length in (29, 16, 8, 1):
        prompt = [*SYSTEM[:length], *line(length, 5)]
        id_ = loop.add(make_request(prompt, 3))
        assert finish(loop, engine)[id_, 0] == tuple(toy_greedy(engine.config, prompt, 3))
    assert kept(loop, SYSTEM) == 30
    empty(loop)
    assert kept(loop, SYSTEM) == 30
    loop.served_cache.pinned.drop("system")
    empty(loop)
    assert not loop.scheduler.manager.pool.used


@pytest.mark.parametrize("name", ["requests of beams", "one sequence"])
def test_running_requests_keep_the_memory_they_need(name: str) -> None:
    """Beams advance together or not at all: a prefix that would leave them too little memory has to wait."""
    loop, _ = opened()
    if name == "one sequence":
        loop.add(make_request(line(2, 60), 30))
        loop.step()
        pin(loop, SYSTEM, "system")
    else:
        beams = loop.add(make_request(line(2, 60), 30, beam_width=3))
        loop.step()
        with pytest.raises(RequestError, match="a running request takes"):
            pin(loop, SYSTEM, "system")
        outputs = run_all(loop)
        assert [o.error for o in outputs if o.request_id == beams] == [None] * len(outputs)
        pin(loop, SYSTEM, "system")
        with pytest.raises(RequestError, match="the pools can hold"):
            loop.add(make_request(line(2, 60), 30, beam_width=3))
    empty(loop)
    assert kept(loop, SYSTEM) == 30


def test_more_than_one_prefix_fills_the_pools_up_to_one_sequence() -> None:
    loop, engine = opened(rows=2)
    with pytest.raises(RequestError, match="expected one that leaves 24 blocks and 1 slots"):
        for number in range(20):
            pin(loop, line(number + 10, 30), str(number))
    count = len(loop.served_cache.pinned.names())
    assert count >= 3
    empty(loop)
    assert all(kept(loop, line(number + 10, 30)) == 30 for number in range(count))
    prompt = line(99, 90)
    ids = [loop.add(ServingRequest(make_request(prompt, 7).request)) for _ in range(3)]
    found = finish(loop, engine)
    assert {found[id_, 0] for id_ in ids} == {tuple(toy_greedy(engine.config, prompt, 7))}


def test_a_prefix_of_full_length_leaves_no_room_for_a_token() -> None:
    loop, _ = opened()
    pin(loop, line(3, 96), "all")
    assert cached_tokens(loop, line(3, 96)) == 95
    with pytest.raises(RequestError, match="96"):
        pin(loop, line(3, 97), "more")


def test_a_prefix_of_a_longer_cached_text_is_pinned_alone() -> None:
    """Without recurrent layers a prefix may end inside what another request left."""
    loop, _ = opened(PURE_ATTENTION)
    cached_tokens(loop, [*SYSTEM, *line(2, 60)])
    pin(loop, SYSTEM, "system")
    assert loop.prefix_cache.pins.counts() == (8, 0)
    empty(loop)
    assert kept(loop, [*SYSTEM, *line(2, 60)]) == 30 and loop.scheduler.manager.pool.used == 8


@LAYERS
@pytest.mark.parametrize(("length", "tail"), [(30, 0), (17, 0), (30, 2), (23, 1)])
def test_tokens_that_another_sequence_has_need_no_more_memory(layers: tuple[str, ...], length: int, tail: int) -> None:
    """The same tokens, a beginning of them, more, or others behind a beginning: only the rest is to be found."""
    kv, state = layers != PURE_MAMBA, layers != PURE_ATTENTION
    slots = 3 if tail or length < 30 else 2
    cache = PrefixCacheSettings(cached_states=slots - 1)
    loop, engine = toy_loop(
        layers, prefix_cache=cache, memory_bytes=(24 + 8 + 4) * 32 * kv + 16 * slots * state, max_rows=1
    )
    pin(loop, SYSTEM, "system")
    with pytest.raises(RequestError, match="expected one that leaves"):
        for seed in range(9):
            pin(loop, line(seed + 9, 30), f"a stranger {seed}")
    for seed in range(9):
        if f"a stranger {seed}" in loop.served_cache.pinned.names():
            loop.served_cache.pinned.drop(f"a stranger {seed}")
    other = [*SYSTEM[:length], *line(7, tail)]
    pin(loop, other, "other")
    empty(loop)
    assert kept(loop, SYSTEM) == 30 and kept(loop, other) == length + tail
    prompt = line(2, 90)
    id_ = loop.add(make_request(prompt, 7))
    assert finish(loop, engine)[id_, 0] == tuple(toy_greedy(engine.config, prompt, 7))


def test_shared_tokens_need_no_more_memory() -> None:
    cache = PrefixCacheSettings(cached_states=1)
    loop, _ = toy_loop(PURE_ATTENTION, prefix_cache=cache, memory_bytes=(24 + 8 + 4 + 1) * 32, max_rows=1)
    pin(loop, line(5, 4), "a stranger")
    pin(loop, SYSTEM, "system")
    pin(loop, [*SYSTEM, *line(7, 2)], "other")
    assert set(loop.served_cache.pinned.names()) == {"a stranger", "system", "other"}


@pytest.mark.parametrize("every", [3, 5])
@pytest.mark.parametrize("running", [False, True], ids=["submitted later", "running"])
def test_states_within_a_block_take_no_further_block(every: int, running: bool) -> None:
    """After each of them a sequence continued inside a block with a copy of it."""
    cache = PrefixCacheSettings(prompt_checkpoints="branches", cached_states=30)
    loop, engine = toy_loop(prefix_cache=cache, max_rows=2, memory_bytes=40 * 32 + 16 * 34)
    for length in range(every, 57, every):
        cached_tokens(loop, line(1, length), 1)
    assert sum(node.state is not None for node in loop.prefix_cache.tree.walk()) == 56 // every
    prompt = line(2, 90)
    found: list[Output] = []
    if running:
        id_ = loop.add(make_request(prompt, 7))
        found += loop.step()

    def compute() -> None:
        computed = loop.add(make_request(line(1, 57), 1))
        while loop.has(computed):
            found.extend(loop.step())

    loop.served_cache.pinned.add(PinnedPrefix("system", tuple(line(1, 57))), compute)
    assert loop.prefix_cache.pins.counts() == (15, 1)
    assert kept(loop, line(1, 57)) == 57
    if not running:
        id_ = loop.add(make_request(prompt, 7))
    poison(loop, engine)
    found += run_all(loop)
    expected = tuple(toy_greedy(engine.config, prompt, 7))
    assert [o.piece.generation.token_ids for o in found if o.request_id == id_ and o.piece.generation] == [expected]


@pytest.mark.parametrize("stays", range(3))
@pytest.mark.parametrize("order", permutations(range(3)), ids=str)
def test_a_prefix_that_is_dropped_leaves_nothing_behind_in_one_that_stays(order: tuple[int, ...], stays: int) -> None:
    """Nested, and branching within a block: all memory that cannot be evicted is counted."""
    loop, _ = opened(cached_states=40)
    for length in range(3, 30, 3):
        cached_tokens(loop, SYSTEM[:length], 1)
    prefixes = [SYSTEM, [*SYSTEM[:15], *line(5, 7)], SYSTEM[:18]]
    for number in order:
        pin(loop, prefixes[number], str(number))
    for number in {*order} - {stays}:
        loop.served_cache.pinned.drop(str(number))
    empty(loop)
    assert loop.prefix_cache.pins.counts()[0] == loop.scheduler.manager.pool.used
    assert kept(loop, prefixes[stays]) == len(prefixes[stays])


@pytest.mark.parametrize("pushed_out", [1, 2, 3])
def test_a_prefix_that_others_push_out_is_computed_again(pushed_out: int) -> None:
    loop, _ = opened()
    computed = 0

    def compute() -> None:
        nonlocal computed
        computed += 1
        loop.add(make_request(SYSTEM, 1))
        run_all(loop)
        if computed <= pushed_out:
            loop.prefix_cache.tree.clear()

    if pushed_out < 3:
        loop.served_cache.pinned.add(PinnedPrefix("system", tuple(SYSTEM)), compute)
        assert computed == pushed_out + 1 and kept(loop, SYSTEM) == 30
    else:
        with pytest.raises(PrefixEvictedError, match="or try again"):
            loop.served_cache.pinned.add(PinnedPrefix("system", tuple(SYSTEM)), compute)
        assert computed == 3 and not loop.served_cache.pinned.names()


@LAYERS
def test_they_outlive_records_that_were_torn(layers: tuple[str, ...]) -> None:
    """All else starts over: running requests end with an error, and the rest of the cache is empty."""
    loop, engine = opened(layers)
    prefixes = [SYSTEM, SYSTEM[:17], [*SYSTEM[:23], *line(5, 7)]]
    for number, tokens in enumerate(prefixes):
        pin(loop, tokens, str(number))
    empty(loop)
    used = loop.prefix_cache.pins.counts()
    loop.prefix_cache.tree.events.drain()
    gone = loop.add(make_request([*SYSTEM, 5, 6], 9))
    outputs = loop.step()
    loop.scheduler.records.torn = MemoryError("too little")
    outputs += run_all(loop)
    assert [(each.request_id, "too little" in str(each.error)) for each in outputs if each.error] == [(gone, True)]
    poison(loop, engine)
    assert loop.prefix_cache.pins.counts() == used and loop.prefix_cache.tree.events.dropped
    assert loop.scheduler.manager.pool.available == loop.scheduler.manager.pool.num_blocks - used[0]
    for tokens in prefixes:
        prompt = [*tokens, 7]
        id_ = loop.add(make_request(prompt, 3))
        assert finish(loop, engine)[id_, 0] == tuple(toy_greedy(engine.config, prompt, 3))
        assert kept(loop, tokens) == len(tokens)
    for number in range(3):
        loop.served_cache.pinned.drop(str(number))
    empty(loop)
    assert not loop.prefix_cache.tree.nodes and not loop.scheduler.manager.pool.used
