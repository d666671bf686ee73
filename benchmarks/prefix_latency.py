"""Time to the first token with and without the prefix cache, measured: 8 groups of 64 prompts of 1,600 + 600 tokens.

On the CPU engine with the checkpoint that ships and shorter prompts; on a GPU with a 2.65 B hybrid in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.agreement import BFLOAT16_TOLERANCE, LOGITS_TOLERANCE, relative_error
from benchmarks.artifacts import DEMO_CHECKPOINT, exported, linked_artifact, work_folder
from benchmarks.measure import Spread
from benchmarks.paged_runs import paged_states, read_states
from benchmarks.prefix_replay import Outcome
from benchmarks.prefix_runs import DEFAULT, WAYS, WITHOUT, replay_on_engine
from benchmarks.prefix_traces import ALIGNED, Groups, Trace
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.prefix_cache.token_key import tokens_from_key
from hybridge.runtime.serving.loop import ServingLoop

CPU, GPU = "onnxruntime", "torch"
# The first token has to come within this share of the time without a cache, in 95 of 100 requests.
SHARE = 0.5
# Relative norm of states in float32 in another order of operations, and in bfloat16.
TOLERANCES = {CPU: LOGITS_TOLERANCE, GPU: BFLOAT16_TOLERANCE}


@dataclass(frozen=True)
class PrefixLatencyBenchmark:
    """``traces`` by engine, with ``states`` states of cache; ``ways`` one after another in each of ``repeats``.

    engines: "onnxruntime", "torch"; default: both where there is a GPU. gate_states: states of the cache that are
    computed again from their tokens. work: a folder that keeps what is of ``model``.
    """

    engines: tuple[str, ...] = ()
    traces: dict[str, Groups] = field(
        default_factory=lambda: {CPU: replace(ALIGNED.scaled(4, 16), at_a_time=4), GPU: ALIGNED}
    )
    states: int = 16
    ways: tuple[str, ...] = (WITHOUT, DEFAULT)
    gate_states: int = 4
    threads: int = 2
    work: str | None = None
    model: Config = field(default_factory=lambda: GPU_MODEL)
    repeats: int = 1


def run(settings: PrefixLatencyBenchmark) -> Report:
    """Replay the trace of each engine; no numbers where a state of the cache is not that of its tokens."""
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    for name in settings.engines or _engines_here():
        trace = settings.traces[name].trace()
        with _opened(name, trace, settings) as engine:
            results[name], worst = _measured(engine, trace, settings)
        checks = f"{name}: states and KV of the cache against computing their tokens, relative error"
        gates.append(Gate(checks, worst, TOLERANCES[name]))
        share = results[name]["p95_share"].median
        targets.append(Target(f"{name}: p95 to the first token, of that without", share, "at most", SHARE, "x"))
    return Report(require(*gates), results, tuple(targets))


def _engines_here() -> tuple[str, ...]:
    import torch

    return (CPU, GPU) if torch.cuda.is_available() else (CPU,)


@contextmanager
def _opened(name: str, trace: Trace, settings: PrefixLatencyBenchmark) -> Iterator[PagedEngine]:
    """The engine ``name`` with its artifact, for as many rows and tokens as the trace has."""
    options = {"layout": "paged", "max_batch_size": trace.at_a_time, "max_seq_len": trace.longest}
    with work_folder(None if name == CPU else settings.work) as work:
        if name == CPU:
            artifact = exported(DEMO_CHECKPOINT, work / "artifact", **options)
        else:
            artifact = linked_artifact(work, "artifact-prefix", settings.model, **options)
        with closing(create_paged_engine(artifact, name, EngineOptions(settings.threads))) as engine:
            yield engine


def _measured(engine: PagedEngine, trace: Trace, settings: PrefixLatencyBenchmark) -> tuple[dict[str, Any], float]:
    """Results of each way, and the worst error of a state in the cache at the end."""
    few = replace(trace, order=trace.order[: 2 * trace.at_a_time])
    for way in settings.ways:  # what is prepared at first use
        replay_on_engine(engine, few, WAYS[way], settings.states)
    runs: dict[str, list[Outcome]] = {way: [] for way in settings.ways}
    worst = 0.0
    for _ in range(settings.repeats):
        for way in settings.ways:
            outcome, loop = replay_on_engine(engine, trace, WAYS[way], settings.states)
            runs[way].append(outcome)
        worst = max(worst, _worst_state(engine, loop, settings.gate_states))
    late = {way: [outcome.percentile(95) for outcome in each] for way, each in runs.items()}
    results: dict[str, Any] = {
        "trace": trace.name,
        "ways": {way: _way(each, runs[WITHOUT]) for way, each in runs.items()},
        "p95_share": Spread.of_ratios(late[DEFAULT], late[WITHOUT]),
    }
    return results, worst


def _way(runs: Sequence[Outcome], without: Sequence[Outcome]) -> dict[str, Any]:
    same = [
        sum(mine.answers[place] == other.answers[place] for place in other.answers) / len(other.answers)
        for mine, other in zip(runs, without, strict=True)
    ]
    return {
        "hit_rate": runs[0].hit_rate,
        **{f"ttft_p{q}_ms": Spread.of(1e3 * run.percentile(q) for run in runs) for q in (50, 95, 99)},
        "same_answers": min(same),
    }


def _worst_state(engine: PagedEngine, loop: ServingLoop, count: int) -> float:
    """The largest relative error of ``count`` states of the cache, and of the KV before them, from all depths.

    Their tokens are computed alone, in new pools, so the loop cannot be used afterwards.
    """
    cache = loop.prefix_cache
    assert cache is not None
    nodes = sorted(
        (node for node in cache.tree.walk() if node.state is not None), key=lambda node: (node.end, node.key)
    )
    chosen = nodes[:: max(1, len(nodes) // count)][-count:]
    held = []
    for node in chosen:
        assert node.state is not None
        found = read_states(engine, cache.tree.blocks_of(node), node.state, node.end)
        held.append((tokens_from_key(node.key), found))
    errors = [0.0]
    for tokens, found in held:
        right = paged_states(engine, tokens)
        errors += [relative_error(array, right[name]) for name, array in found.items()]
    return max(errors)
