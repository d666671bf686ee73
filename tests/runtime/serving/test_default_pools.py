"""Default pools of a prefix cache hit what tuned ones do, whatever the layers, or a warning says what to set."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.serving.toy_loop import make_request, run_all
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config

CHATS, TURNS, SAID, ANSWER = 16, 4, 14, 6
ROWS, LONGEST = 8, 128
LAYERS = {"hybrid": HYBRID, "attention": PURE_ATTENTION, "mamba": PURE_MAMBA}
TUNED = ServingSettings(4, memory_bytes=1 << 20, prefix_cache=PrefixCacheSettings(cached_states=4 * CHATS))


class WideStateEngine(ToyPagedEngine):
    """Says that a state takes as much as the KV of ``state_tokens`` tokens."""

    state_tokens = 1

    @property
    def slot_bytes(self) -> int:
        return 8 * self.state_tokens if self.config.recurrent_layers else 0


def engine_of(layers: Sequence[str], tokens: int) -> ToyPagedEngine:
    engine = WideStateEngine(paged_config(layers, LONGEST), max_tokens=64, max_rows=ROWS)
    engine.state_tokens = tokens
    return engine


def hit_rate(engine: ToyPagedEngine, settings: ServingSettings) -> float:
    """Share of the prompts' tokens of all chats, which take turns, that were not computed."""
    loop = ServingLoop(engine, settings, (), None)
    rng, histories = np.random.default_rng(3), [[] for _ in range(CHATS)]  # type: ignore[var-annotated]
    hit = told = 0
    for _ in range(TURNS):
        for history in histories:
            history += rng.integers(0, 61, SAID).tolist()
            loop.add(make_request(history, ANSWER))
            (answer,) = (o.piece.generation for o in run_all(loop) if o.piece and o.piece.generation)
            hit, told = hit + answer.cached_tokens, told + len(history)
            history += answer.token_ids
    return hit / told


# Of a Mamba2 model a state may weigh anything; of a hybrid, from the KV of a token to that of ten whole sequences.
@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("mamba", 1),
        *(
            pytest.param(kind, tokens, marks=pytest.mark.slow)
            for kind, tokens in (("attention", 0), ("mamba", 1280), ("hybrid", 1), ("hybrid", 40), ("hybrid", 1280))
        ),
    ],
)
def test_default_pools_hit_what_tuned_ones_do(kind: str, tokens: int) -> None:
    engine = engine_of(LAYERS[kind], tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = hit_rate(engine, ServingSettings(4, prefix_cache="radix"))
    best = hit_rate(engine, TUNED)
    assert best > 0.5
    assert found > best - 0.05


def test_pools_with_room_for_few_states_say_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with little memory left; what the warning says is enough."""
    engine = engine_of(HYBRID, 1280)
    monkeypatch.setattr(engine, "free_memory", lambda: 150_000)
    with pytest.warns(RuntimeWarning, match="room for [0-9] states, .* set memory_bytes to [0-9]+ for 32") as caught:
        few = hit_rate(engine, ServingSettings(4, prefix_cache="radix"))
    assert len(caught) == 1
    enough = int(re.findall("memory_bytes to ([0-9]+)", str(caught[0].message))[0])
    many = hit_rate(engine, ServingSettings(4, memory_bytes=enough, prefix_cache="radix"))
    best = hit_rate(engine, TUNED)
    assert few < best - 0.05 < many


@pytest.mark.parametrize("cache", ["blocks", PrefixCacheSettings(cached_states=1)], ids=["blocks", "one state"])
def test_explicit_choices_give_no_warning(monkeypatch: pytest.MonkeyPatch, cache: PrefixCacheSettings | str) -> None:
    engine = engine_of(HYBRID, 1280)
    monkeypatch.setattr(engine, "free_memory", lambda: 150_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ServingLoop(engine, ServingSettings(4, prefix_cache=cache), (), None)
