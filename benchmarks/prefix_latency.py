"""Time to the first token with and without the prefix cache, measured: 8 groups of 64 prompts of 1,600 + 600 tokens.

On the CPU engine with the checkpoint that ships and shorter prompts; on a GPU with a 2.65 B hybrid in bfloat16.
Without --engine on both, where there is a GPU. --work FOLDER keeps the large checkpoint and its artifact there, and
takes them from there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.agreement import relative_error
from benchmarks.artifacts import DEMO_CHECKPOINT
from benchmarks.command import run_command
from benchmarks.measure import Spread
from benchmarks.paged_runs import paged_states, read_states
from benchmarks.prefix_replay import Outcome
from benchmarks.prefix_runs import DEFAULT, WAYS, WITHOUT, replay_on_engine
from benchmarks.prefix_traces import ALIGNED, Groups, Trace
from benchmarks.random_checkpoint import NemotronHShape
from benchmarks.report import Gate, Report, Target
from benchmarks.torch_engine import LOGITS_TOLERANCE, SHAPE
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.prefix_cache.token_key import tokens_from_key
from hybridge.runtime.serving.loop import ServingLoop

NAME, REPEATS = "prefix_latency", 1
CPU, GPU = "onnxruntime", "torch"
# The first token has to come within this share of the time without a cache, in 95 of 100 requests.
SHARE = 0.5
# Relative norm of states in float32 in another order of operations, and in bfloat16.
TOLERANCES = {CPU: 1e-4, GPU: LOGITS_TOLERANCE}


@dataclass(frozen=True)
class PrefixLatencyBenchmark:
    """``traces`` by engine, with ``states`` states of cache; ``ways`` one after another in each of ``repeats``.

    gate_states: so many states of the cache are computed again from their tokens. device: of the torch engine. work: a
    folder that keeps what is of ``shape``, None for one that goes at the end.
    """

    engines: tuple[str, ...] = (CPU, GPU)
    traces: dict[str, Groups] = field(
        default_factory=lambda: {
            CPU: replace(ALIGNED.scaled(4, 16), at_a_time=4),
            GPU: ALIGNED,
        }
    )
    states: int = 16
    ways: tuple[str, ...] = (WITHOUT, DEFAULT)
    gate_states: int = 4
    threads: int = 2
    device: str = "cuda"
    work: str | None = None
    shape: NemotronHShape = SHAPE
    repeats: int = REPEATS


def run(settings: PrefixLatencyBenchmark) -> Report:
    """Replay the trace of each engine; no numbers where a state of the cache is not what its tokens make it."""
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    for name in settings.engines:
        trace = settings.traces[name].trace()
        with _opened(name, trace, settings) as engine:
            found, worst = _measured(engine, trace, settings)
        checks = f"{name}: states and KV of the cache against computing their tokens, relative error"
        gates.append(Gate(checks, worst, TOLERANCES[name]))
        results[name] = found
        share = found["p95_share"]["median"]
        targets.append(Target(f"{name}: p95 to the first token, of that without", share, "at most", SHARE, "x"))
    values = {key: value for key, value in asdict(settings).items() if key != "work"}
    report = Report(NAME, values, tuple(gates), results, tuple(targets))
    return report if report.passed else Report(NAME, values, tuple(gates))


@contextmanager
def _opened(name: str, trace: Trace, settings: PrefixLatencyBenchmark) -> Iterator[PagedEngine]:
    """The engine ``name`` with its artifact, for as many rows and tokens as the trace has."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as temporary:
        options = ExportOptions(layout="paged", max_batch_size=trace.at_a_time, max_seq_len=trace.longest, scan=False)
        engine: PagedEngine
        if name == CPU:
            from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine

            folder = Path(temporary) / "artifact"
            export_checkpoint(DEMO_CHECKPOINT, folder, options)
            engine = OnnxRuntimePagedEngine(folder, threads=settings.threads)
        else:
            from benchmarks.serving_torch import linked_artifact
            from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

            folder = linked_artifact(Path(settings.work or temporary), "artifact-prefix", settings.shape, options)
            engine = TorchPagedEngine(folder, device=settings.device)
        try:
            yield engine
        finally:
            engine.close()


def _measured(engine: PagedEngine, trace: Trace, settings: PrefixLatencyBenchmark) -> tuple[dict[str, Any], float]:
    """What each way gave, and the worst error of a state that the cache had at the end."""
    few = replace(trace, order=trace.order[: 2 * trace.at_a_time])
    for way in settings.ways:  # whatever is prepared once
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
        "p95_share": Spread.of_ratios(late[DEFAULT], late[WITHOUT]).to_json(),
    }
    return results, worst


def _way(runs: Sequence[Outcome], without: Sequence[Outcome]) -> dict[str, Any]:
    same = [
        sum(mine.answers[place] == other.answers[place] for place in other.answers) / len(other.answers)
        for mine, other in zip(runs, without, strict=True)
    ]
    return {
        "hit_rate": runs[0].hit_rate,
        **{f"ttft_p{q}_ms": Spread.of(1e3 * run.percentile(q) for run in runs).to_json() for q in (50, 95, 99)},
        "same_answers": min(same),
    }


def _worst_state(engine: PagedEngine, loop: ServingLoop, count: int) -> float:
    """The largest relative error of ``count`` states of the cache, and of the KV before them, from all depths.

    They are compared with what their tokens give alone, in pools of their own: the loop is of no use afterwards.
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


def main() -> int:
    """The exit code: 0, or 1 when a state was wrong."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", choices=(CPU, GPU), action="append")
    parser.add_argument("--work")
    known, rest = parser.parse_known_args()
    engines = tuple(known.engine or ((CPU, GPU) if _has_gpu() else (CPU,)))

    def benchmark(repeats: int) -> Report:
        return run(PrefixLatencyBenchmark(engines=engines, work=known.work, repeats=repeats))

    return run_command(__doc__ or "", benchmark, REPEATS, rest)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
