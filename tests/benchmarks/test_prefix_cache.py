"""The prefix cache benchmark runs on small traces, and the best possible is what a search through everything finds."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.plots import draw
from benchmarks.prefix_cache import PrefixCacheBenchmark
from benchmarks.prefix_optimum import Optimum
from benchmarks.prefix_replay import CostEngine
from benchmarks.prefix_traces import Chats, Groups
from tests.benchmarks.measured import correct, document

SMALL = PrefixCacheBenchmark(
    full=((Groups("1,600", 2, 4, 160, 60, 4, 2), 4), (Chats("chats", 2, 2, 30, 10, 4, 2), 4)),
    scaled=((Groups("groups", 2, 3, 40, 10, 3, 2), 4),),
    seeds=(0, 3),
    lookup_nodes=40,
    lookup_tokens=64,
    threads=1,
    repeats=1,
)


@pytest.mark.slow
def test_it_measures() -> None:
    results = correct("prefix_cache", SMALL)["results"]
    assert len(results["cost_model"]) == 4 and len(results["cpu"]) == 1
    for row in (*results["cost_model"], *results["cpu"]):
        assert row["ways"]["without"]["hit_rate"] == 0 < row["ways"]["value"]["hit_rate"] <= row["optimum"] + 1e-9


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the plot extra (matplotlib)")
    ways = {name: {"hit_rate": 0.5, "ttft_p95_s": 0.1} for name in ("without", "lru", "value")}
    rows = [{"trace": "a", "states": 4, "seed": seed, "optimum": 0.6, "ways": ways} for seed in (0, 0, 1)]
    found = {"benchmark": "prefix_cache", "settings": {"seeds": [0, 1]}, "results": {"cost_model": rows}}
    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second


@pytest.mark.slow
def test_wrong_answers_give_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CostEngine.step
    monkeypatch.setattr(CostEngine, "step", lambda self, inputs: np.roll(step(self, inputs), self.tokens % 7, axis=1))
    found = document("prefix_cache", SMALL)
    assert not found["correct"] and "results" not in found


def search(prompts: list[tuple[int, ...]], states: int) -> int:
    """The most tokens hit, by trying every set of states after every request."""

    @cache
    def best(request: int, held: frozenset[tuple[int, ...]]) -> int:
        if request == len(prompts):
            return 0
        prompt = prompts[request]
        resumed = max((len(h) for h in held if len(h) < len(prompt) and prompt[: len(h)] == h), default=0)
        made = held | {prompt[:end] for end in range(resumed + 1, len(prompt) + 1)}
        useful = [m for m in made if any(later[: len(m)] == m for later in prompts[request + 1 :])]
        choices = combinations(sorted(useful), min(states, len(useful)))
        return resumed + max(best(request + 1, frozenset(choice)) for choice in choices)

    return best(0, frozenset())


@pytest.mark.parametrize("states", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_what_a_search_finds(seed: int, states: int) -> None:
    """Groups of one depth, where dropping the one needed last is optimal."""
    rng = np.random.default_rng(seed)
    begins = [tuple(rng.integers(10 * g, 10 * g + 9, 3).tolist()) for g in range(3)]
    prompts = [(*begins[int(rng.integers(3))], 100 + i) for i in range(8)]
    assert Optimum(prompts, prompts).hits(states) == search(prompts, states)


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_of_nested_prompts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [(*rng.integers(0, 2, int(rng.integers(2, 5))).tolist(), 9 + i) for i in range(7)]
    for states in (1, 2):
        assert Optimum(prompts, prompts).hits(states) == search(prompts, states)
