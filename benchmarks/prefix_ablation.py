"""What each part of the prefix cache gains: prompt tokens hit with all of them, and with one switched off.

On the clock of the cost model, over the traces of ``prefix_cache``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.prefix_cache import PrefixCacheBenchmark, Traces
from benchmarks.prefix_replay import Outcome
from benchmarks.prefix_runs import DEFAULT, WAYS, WITHOUT, replay_on_model
from benchmarks.prefix_traces import Trace
from benchmarks.runner import Gate, Report, require
from hybridge.runtime.prefix_cache.checkpoint_kind import REUSE_RATES, CheckpointKind
from hybridge.runtime.prefix_cache.checkpoint_positions import checkpoint_positions
from hybridge.runtime.prefix_cache.settings import BRANCHES, LRU, PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_tree import TreeMatch

ALL = "all parts"


@dataclass(frozen=True)
class Without:
    """A cache without one part: its settings, and what takes the place of names in hybridge.runtime.prefix_cache."""

    settings: PrefixCacheSettings = WAYS[DEFAULT]
    replaced: Mapping[str, Any] | None = None


def _no_branches(
    match: TreeMatch, prompt: int, branch_point: int, expected: Sequence[int], early: bool
) -> list[tuple[int, CheckpointKind]]:
    found = checkpoint_positions(match, prompt, branch_point, expected, early)
    new = [at for at in expected if at > match.known and 2 * match.known < prompt - 1]
    own = [(at, CheckpointKind.EXPECTED if at in new else kind) for at, kind in found]
    return [each for each in own if each[1] is not CheckpointKind.BRANCH]


def _value_of_uses(policy: object, clock: int, start: int, end: int, uses: float) -> float:
    """As if every use saved as many tokens."""
    return clock + 1024 * min(uses, 8)


_ONE_RATE = dict.fromkeys(CheckpointKind, sum(REUSE_RATES.values()) / len(REUSE_RATES))
PARTS: Mapping[str, Without] = {
    ALL: Without(),
    "policy value": Without(PrefixCacheSettings(policy=LRU)),
    "states where prompts branch": Without(replaced={"radix_cache.checkpoint_positions": _no_branches}),
    "early states": Without(PrefixCacheSettings(prompt_checkpoints=BRANCHES)),
    "refusing states of less value": Without(
        replaced={"radix_tree.RadixTree.new_state_value": lambda *_: float("inf")}
    ),
    "expected lengths": Without(replaced={"branch_lengths.BranchLengths.expected": lambda _: ()}),
    "uses of a replaced state": Without(replaced={"uses._replaces": lambda *_: False}),
    "reuse rates by kind": Without(replaced={"uses.REUSE_RATES": _ONE_RATE, "eviction_policy.REUSE_RATES": _ONE_RATE}),
    "tokens of past prompts": Without(replaced={"past_prompts.PastPrompts.branch_point": lambda *_: 0}),
    "history of evicted states": Without(replaced={"eviction_history.EvictionHistory.uses": lambda *_: 0}),
    "tokens saved": Without(replaced={"eviction_policy.CostAwareEviction.new_state_value": _value_of_uses}),
}


@dataclass(frozen=True)
class PrefixAblationBenchmark:
    """``full``: traces made from ``seed``, with the states that the cache may hold. parts: those switched off."""

    full: Traces = PrefixCacheBenchmark.full
    parts: tuple[str, ...] = tuple(PARTS)[1:]
    seed: int = 0


def run(settings: PrefixAblationBenchmark) -> Report:
    """Replay every trace with all parts and without each; an answer never depends on them."""
    rows, wrong = [], 0
    for spec, states in settings.full:
        trace = spec.trace(settings.seed)
        right = replay_on_model(trace, WAYS[WITHOUT], states).answers
        outcomes = {part: _replayed(trace, PARTS[part], states) for part in (ALL, *settings.parts)}
        wrong += sum(outcome.answers != right for outcome in outcomes.values())
        hits = {part: 100 * outcome.hit_rate for part, outcome in outcomes.items()}
        rows.append({"trace": trace.name, "states": states, "hits": hits})
    gates = require(Gate("replays whose answers differ from those without a cache", float(wrong), 0.0))
    return Report(gates, {"rows": rows, "largest_loss": {part: _loss(rows, part) for part in settings.parts}})


def _replayed(trace: Trace, without: Without, states: int) -> Outcome:
    with ExitStack() as stack:
        for name, value in (without.replaced or {}).items():
            stack.enter_context(patch(f"hybridge.runtime.prefix_cache.{name}", value))
        return replay_on_model(trace, without.settings, states)


def _loss(rows: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """In points of prompt tokens, and the trace that loses so much."""
    row = max(rows, key=lambda row: row["hits"][ALL] - row["hits"][part])
    return {"points": row["hits"][ALL] - row["hits"][part], "trace": row["trace"], "states": row["states"]}
