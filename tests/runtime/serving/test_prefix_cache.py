"""Requests that begin alike, with a prefix cache: the tokens of each alone, and only new ones computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from runtime.prefix_cache.settings import PrefixCacheSettings
from runtime.serving.loop import ServingLoop
from tests.runtime.serving.toy_loop import answers, asked, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_greedy


def poison(loop: ServingLoop, engine: ToyPagedEngine) -> None:
    """NaN in every block and slot that nobody holds, the cache included."""
    manager = loop.scheduler.manager
    sources = {source for source, _ in loop.scheduler._slot_copies}
    blocks = [block for block in range(manager.pool.num_blocks) if not manager.pool.references(block)]
    slots = [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    engine.poison(blocks, slots)


def cached_tokens(loop: ServingLoop, prompt: Sequence[int], new: int = 1) -> int:
    """Run one request alone; the tokens of its prompt that were not computed."""
    id_ = loop.add(asked(prompt, new))
    return next(o.piece.generation.cached_tokens for o in run_all(loop) if o.request_id == id_ and o.piece.generation)


@pytest.mark.parametrize("mode", ["no_buffer", "extra_buffer"])
@pytest.mark.parametrize("memory_bytes", [10_000, 1_500, 900])
@pytest.mark.parametrize(
    ("layers", "window"), [(HYBRID, None), (HYBRID, 5), (PURE_ATTENTION, None), (PURE_MAMBA, None)], ids=str
)
def test_tokens_are_those_of_each_alone(
    layers: Sequence[str], window: int | None, memory_bytes: int, mode: str
) -> None:
    cache = PrefixCacheSettings(mode=mode, grid=8, decode_interval=5, cached_states=6)
    loop, engine = toy_loop(layers, window, prefix_cache=cache, memory_bytes=memory_bytes)
    rng = np.random.default_rng(memory_bytes)
    begins = [rng.integers(0, 61, 30).tolist() for _ in range(3)]
    wanted: dict[tuple[int, int], tuple[int, ...]] = {}
    outputs = []
    while len(wanted) < 40 or loop.busy:
        while len(wanted) < 40 and rng.random() < 0.5:
            shared = begins[int(rng.integers(3))][: int(rng.integers(1, 31))]
            prompt = shared + rng.integers(0, 61, int(rng.integers(0, 20))).tolist()
            request = asked(prompt, int(rng.integers(1, 20)))
            wanted[loop.add(request), 0] = tuple(toy_greedy(engine.config, prompt, request.request.max_new_tokens))
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
    assert answers(outputs) == wanted
    assert loop.prefix_cache.metrics.hit_tokens > 0 or memory_bytes < 1_500


@pytest.mark.parametrize("mode", ["no_buffer", "extra_buffer"])
def test_a_chat_computes_only_what_is_new(mode: str) -> None:
    loop, engine = toy_loop(prefix_cache=PrefixCacheSettings(mode=mode, cached_states=20))
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
