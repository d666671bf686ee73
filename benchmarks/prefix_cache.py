"""Prompt tokens that the prefix cache hits, compared with the offline optimum.

In full with a cost model, shortened on ONNX Runtime with the checkpoint that ships. Takes about five minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measure import Spread, seconds
from benchmarks.prefix_runs import DEFAULT, SIMPLE, WITHOUT, Compared, compared, demo_engine
from benchmarks.prefix_traces import ALIGNED, LONG, SHORT, TALK, UNALIGNED, VARIED, Chats, Groups
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.prefix_cache.past_prompts import NoMemory
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import key_from_tokens

Traces = tuple[tuple[Groups | Chats, int], ...]


@dataclass(frozen=True)
class PrefixCacheBenchmark:
    """``full``: traces with the states that the cache may hold, on the cost model; ``scaled`` on the CPU engine.

    seeds: of which the traces are made; the cache was made with 0 and 11 in view. lookup_nodes, lookup_tokens: of the
    tree and of the prompt that is looked up.
    """

    full: Traces = (
        (LONG, 64),
        (SHORT, 16),
        (ALIGNED, 16),
        (UNALIGNED, 16),
        (VARIED, 16),
        (TALK, 16),
        (ALIGNED, 8),
        (UNALIGNED, 8),
        (ALIGNED, 64),
        (UNALIGNED, 64),
    )
    seeds: tuple[int, ...] = (0, 1, 2)
    scaled: Traces = (
        (LONG.scaled(20, 4, groups=10), 16),
        (SHORT.scaled(8, 4, groups=4), 16),
        (ALIGNED.scaled(10, 4), 16),
        (UNALIGNED.scaled(10, 4), 16),
        (TALK.scaled(10, 12), 16),
    )
    lookup_nodes: int = 100_000
    lookup_tokens: int = 32_768
    threads: int = 2
    repeats: int = 5


def run(settings: PrefixCacheBenchmark) -> Report:
    """Replay all traces."""
    full = [compared(spec.trace(seed), seed, states) for seed in settings.seeds for spec, states in settings.full]
    traces = [(spec.trace(), states) for spec, states in settings.scaled]
    with demo_engine([trace for trace, _ in traces], settings.threads) as engine:
        scaled = [compared(trace, 0, states, engine) for trace, states in traces]
    wrong = sum(each.wrong() for each in (*full, *scaled))
    gates = require(Gate("answers that differ from those without a cache", float(wrong), 0.0))
    lookup = Spread.of(_lookups(settings))
    results = {
        "cost_model": [each.to_json() for each in full],
        "cpu": [each.to_json() for each in scaled],
        "lookup_ms": lookup,
    }
    return Report(gates, results, _targets(full, scaled, lookup))


def _targets(full: Sequence[Compared], scaled: Sequence[Compared], lookup: Spread) -> tuple[Target, ...]:
    """One target for each trace, with the worst of all seeds."""
    targets = []
    for place, group in (("cost model", full), ("CPU", scaled)):
        for trace, states in dict.fromkeys((each.trace, each.states) for each in group):
            runs = [each for each in group if (each.trace, each.states) == (trace, states)]
            name = f"{place}, {trace}, {states} states"
            least = min(each.of_optimum for each in runs)
            targets.append(Target(f"{name}: hit tokens of the offline optimum", least, "at least", 0.95, "x"))
            ratio = min(each.ratio(DEFAULT, SIMPLE) for each in runs)
            targets.append(Target(f"{name}: hit tokens of plain LRU", ratio, "at least", 1.0, "x"))
            if trace == ALIGNED.name and place == "cost model":
                late = max(_late(each) for each in runs)
                targets.append(Target(f"{name}: p95 to the first token, of that without", late, "at most", 0.5, "x"))
    for states in sorted({each.states for each in full if each.trace == UNALIGNED.name}):
        name = f"1,500 + 700 next to 1,600 + 600, {states} states"
        apart = max(_apart(full, states, seed) for seed in {each.seed for each in full})
        targets.append(Target(name, apart, "at most", 2.0, "points of the offline optimum"))
    targets.append(Target("lookup of 32k tokens among 100k nodes", lookup.median, "at most", 2.0, "ms"))
    return tuple(targets)


def _late(each: Compared) -> float:
    return each.outcomes[DEFAULT].percentile(95) / each.outcomes[WITHOUT].percentile(95)


def _apart(full: Sequence[Compared], states: int, seed: int) -> float:
    aligned, unaligned = (
        next(each for each in full if (each.trace, each.states, each.seed) == (spec.name, states, seed)).of_optimum
        for spec in (ALIGNED, UNALIGNED)
    )
    return 100 * abs(aligned - unaligned)


def _lookups(settings: PrefixCacheBenchmark) -> list[float]:
    """Milliseconds from the tokens of a prompt to its match; it passes 16 nodes on the way."""
    rng = np.random.default_rng(0)
    tree = RadixTree(NoMemory(), NoMemory(), 16)
    prompt = rng.integers(0, 32_000, settings.lookup_tokens)
    blocks = range(settings.lookup_tokens)
    part = settings.lookup_tokens // 16
    for end in range(part, settings.lookup_tokens, part):
        tree.insert(key_from_tokens(prompt[:end]), blocks, end)
    while tree.nodes < settings.lookup_nodes:
        other = np.concatenate((prompt[: int(rng.integers(0, 64))], rng.integers(0, 32_000, 24)))
        tree.insert(key_from_tokens(other), blocks, tree.nodes)
    tokens = prompt.tolist()
    return [1e3 * seconds(lambda: tree.match(key_from_tokens(tokens))) for _ in range(settings.repeats)]
