"""Continuous batching against one request after another, and latencies under Poisson arrivals.

On the CPU with the checkpoint that ships, and on a GPU with a hybrid model of 2.65 B parameters in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import DEMO_CHECKPOINT, exported, linked_artifact, scratch_folder, work_folder
from benchmarks.measure import Spread, seconds, spreads, take_turns, timed
from benchmarks.python_time import python_time
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import Served, host_microseconds, old_objects_frozen, poisson_arrivals, serve
from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import OFF, RADIX
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

if TYPE_CHECKING:
    from hybridge.runtime.engines.torch.engine import TorchEngine
    from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

LEAST_RATIO = {"cpu": 2.0, "cuda": 20.0}
MOST_HOST_MICROSECONDS = 150.0
MOST_PYTHON_MICROSECONDS = 60.0
Prompts = Sequence[list[int]]


@dataclass(frozen=True)
class ServingBenchmarkSettings:
    """``requests`` prompts of ``prompt`` tokens and ``new_tokens`` each, ``batch`` at a time.

    loads: arrival rates for the latencies, over the rate at which the batched run finishes requests. alone: tokens of
    prompts that come one at a time, each twice, with a prefix cache and without.
    """

    requests: int = 16
    batch: int = 8
    prompt: int = 64
    new_tokens: int = 48
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    alone: tuple[int, ...] = (100, 512)
    threads: int = 2
    repeats: int = 5


def run(settings: ServingBenchmarkSettings) -> Report:
    """Export the checkpoint that ships in both layouts and serve the same requests in four ways."""
    length, threads = max(settings.prompt + settings.new_tokens, *settings.alone) + 1, settings.threads
    with scratch_folder() as work:
        options = {"max_batch_size": settings.batch, "max_seq_len": length}
        dense_folder = exported(DEMO_CHECKPOINT, work / "dense", **options)
        paged_folder = exported(DEMO_CHECKPOINT, work / "paged", layout="paged", **options)
        with LLM(dense_folder, threads=threads) as dense, LLM(paged_folder, threads=threads) as paged:
            prompts = _prompts(settings.requests, settings.prompt, dense.config.vocab_size)
            new_tokens = settings.new_tokens
            ways = {
                "dense, one after another": lambda: _one_by_one(dense, prompts, new_tokens),
                "dense, batched": lambda: dense.generate(prompts, _sampling(new_tokens)),
                "paged, one after another": lambda: _one_by_one(paged, prompts, new_tokens),
                "paged, batched": lambda: paged.generate(prompts, _sampling(new_tokens)),
            }
            first, *others = ([answer.token_ids for answer in way()] for way in ways.values())
            wrong = sum(tokens != right for other in others for tokens, right in zip(other, first, strict=True))
            gates = require(Gate("answers that differ from those of the dense engine", float(wrong), 0.0))
            times = take_turns({name: timed(way) for name, way in ways.items()}, settings.repeats)
            python = {name: python_time(ways[name], settings.repeats) for name in ways if name.startswith("paged")}
            each = median(times["paged, batched"]) / settings.requests
            latencies = _latencies(paged.loop, prompts, new_tokens, each, settings.loads)
        first_token = {
            str(tokens): _alone(paged_folder, tokens, threads, settings.repeats) for tokens in settings.alone
        }
    tokens = settings.requests * settings.new_tokens
    ratio = Spread.of_ratios(times["dense, one after another"], times["paged, batched"])
    results = {
        "tokens_per_second": {name: Spread.of(tokens / t for t in values) for name, values in times.items()},
        "ratio": ratio,
        "python_us": python,
        "latency_ms": latencies,
        "first_token_ms": first_token,
    }
    title = f"Python outside ONNX Runtime a paged step of {settings.batch} rows"
    python_target = Target(title, python["paged, batched"]["median"], "at most", MOST_PYTHON_MICROSECONDS, "us")
    return Report(gates, results, (_ratio_target(settings.batch, ratio, "cpu"), python_target))


@dataclass(frozen=True)
class TorchServingSettings:
    """Prompts of ``prompt`` tokens, ``new_tokens`` each, ``batch`` at a time; ``alone`` of them one after another.

    pressure: arrival rate where throughput is measured, over the rate at which requests can be served. loads: the same
    where latencies are measured. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifacts.
    """

    device: str = "cuda"
    work: str | None = None
    batch: int = 64
    prompt: int = 512
    new_tokens: int = 128
    requests: int = 384
    alone: int = 4
    pressure: float = 1.3
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    latency_requests: int = 160
    max_tokens: int = 2048
    gate_tokens: int = 70
    gate_steps: int = 4
    repeats: int = 5
    model: Config = field(default_factory=lambda: GPU_MODEL)


def run_torch(settings: TorchServingSettings) -> Report:
    """Compare logits of both engines, then serve."""
    from hybridge.runtime.engines.torch.engine import TorchEngine
    from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

    longest = settings.prompt + settings.new_tokens
    with work_folder(settings.work) as work:
        dense_folder, paged_folder = (
            linked_artifact(
                work, f"artifact-{layout}", settings.model, layout=layout, max_batch_size=rows, max_seq_len=longest
            )
            for layout, rows in (("dense", 1), ("paged", settings.batch))
        )
        with (
            closing(TorchEngine(dense_folder, device=settings.device)) as dense,
            closing(TorchPagedEngine(paged_folder, device=settings.device)) as paged,
        ):
            gates = require(*_gates(dense, paged, settings))
            results = _measured(LLM(dense_folder, engine=dense), dense, paged, settings)
    title, host = f"host's share of a decode step at batch {settings.batch}", results["host_us"].median
    targets = (
        _ratio_target(settings.batch, results["ratio"], "cuda"),
        Target(title, host, "at most", MOST_HOST_MICROSECONDS, "us"),
    )
    return Report(gates, results, targets)


def _gates(dense: TorchEngine, paged: TorchPagedEngine, settings: TorchServingSettings) -> list[Gate]:
    """Logits after a prompt in two chunks and after single tokens, of one row and of all."""
    from benchmarks.engine_runs import EngineRuns
    from benchmarks.paged_runs import paged_logits

    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(dense.config.vocab_size, tokens + steps, seed=1)
    expected = EngineRuns(dense).logits(sequence, tokens, 1)
    gates = []
    for rows in (1, settings.batch):
        checks = f"logits of {rows} packed rows of {tokens} tokens and {steps} decode steps against the dense engine"
        gates.append(error_gate(checks, paged_logits(paged, sequence, tokens, rows), expected, BFLOAT16_TOLERANCE))
    return gates


def _measured(llm: LLM, dense: TorchEngine, paged: TorchPagedEngine, settings: TorchServingSettings) -> dict[str, Any]:
    from benchmarks.engine_runs import device_name

    prompts = _prompts(settings.requests, settings.prompt, paged.config.vocab_size)
    new_tokens = settings.new_tokens
    loop = ServingLoop(paged, ServingSettings(max_rows=settings.batch, max_tokens=settings.max_tokens), (), None)
    # The first time kernels are compiled and graphs recorded; the second gives the time of a request in full batches.
    some = prompts[: 3 * settings.batch]
    each = min(serve(loop, some, [0.0] * len(some), new_tokens).tokens[-1][-1] for _ in range(2)) / len(some)
    _one_by_one(llm, prompts[:1], new_tokens)
    runs: list[Served] = []

    def alone() -> float:
        return settings.alone * new_tokens / seconds(lambda: _one_by_one(llm, prompts[: settings.alone], new_tokens))

    def batched() -> float:
        arrivals = poisson_arrivals(settings.requests, each / settings.pressure)
        runs.append(serve(loop, prompts, arrivals, new_tokens))
        return runs[-1].rate()

    rates = take_turns({"dense, one after another": alone, "paged, Poisson arrivals": batched}, settings.repeats, 0)
    best = new_tokens / max(rates["paged, Poisson arrivals"])
    return {
        "tokens_per_second": spreads(rates),
        "ratio": Spread.of_ratios(rates["paged, Poisson arrivals"], rates["dense, one after another"]),
        "host_us": Spread.of(median(host_microseconds(run, settings.batch)) for run in runs),
        "steps": _steps(runs[-1], settings.batch),
        "latency_ms": _latencies(loop, prompts[: settings.latency_requests], new_tokens, best, settings.loads),
        "memory": str(loop.pools),
        "graphs": {
            "decoding": sum(step.repeated.is_replayed for step in paged.decode_steps.values()),
            "mixed": sum(step.repeated.is_replayed for step in paged.mixed_steps.values()),
        },
        "device": device_name(dense.device),
    }


def _steps(served: Served, batch: int) -> dict[str, Any]:
    """The time of steps in which all rows decode, in which fewer do, and of those with tokens of prompts."""
    kinds = {
        "decoding, all rows": [s for s in served.steps if s.rows == s.tokens == batch],
        "decoding, fewer rows": [s for s in served.steps if s.rows == s.tokens < batch],
        "with prompts": [s for s in served.steps if s.rows < s.tokens],
    }
    return {
        name: {
            "steps": len(steps),
            "seconds": sum(s.wall for s in steps),
            "wall_us": 1e6 * median(s.wall for s in steps),
            "device_us": 1e6 * median(s.device for s in steps),
            "tokens": median(s.tokens for s in steps),
        }
        for name, steps in kinds.items()
        if steps
    }


def _prompts(count: int, tokens: int, vocab: int) -> list[list[int]]:
    prompts: list[list[int]] = np.random.default_rng(0).integers(0, vocab, (count, tokens)).tolist()
    return prompts


def _sampling(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)


def _one_by_one(llm: LLM, prompts: Prompts, new_tokens: int) -> list[Generation]:
    return [llm.generate(prompt, _sampling(new_tokens)) for prompt in prompts]


def _alone(folder: Path, tokens: int, threads: int, repeats: int) -> dict[str, Spread]:
    """Milliseconds to the first token of a prompt of ``tokens`` tokens that comes alone, and again, and ratios."""
    with (
        LLM(folder, threads=threads, serving=ServingSettings(prefix_cache=OFF)) as without,
        LLM(folder, threads=threads, serving=ServingSettings(prefix_cache=RADIX)) as cached,
    ):
        prompts = iter(_prompts(3 * repeats + 1, tokens, cached.config.vocab_size))
        prompt: list[int] = []

        def first_token(llm: LLM, new: bool = False) -> float:
            if new:
                prompt[:] = next(prompts)
            return 1e3 * seconds(lambda: llm.generate(prompt, _sampling(1)))

        ways = {
            "no cache": partial(first_token, without, new=True),
            "new prompt": partial(first_token, cached),
            "same prompt again": partial(first_token, cached),
        }
        times = take_turns(ways, 3 * repeats)
    ratios = {f"{way}, times no cache": Spread.of_ratios(times[way], times["no cache"]) for way in list(ways)[1:]}
    return spreads(times) | ratios


def _latencies(
    loop: ServingLoop, prompts: Prompts, new_tokens: int, each: float, loads: Sequence[float]
) -> dict[str, dict[str, float]]:
    """By load, and the longest step; a request takes ``each`` seconds when the loop is busy."""
    found = {}
    for load in loads:
        arrivals = poisson_arrivals(len(prompts), each / load)
        with old_objects_frozen():
            served = serve(loop, prompts, arrivals, new_tokens)
        longest = max(step.wall for step in served.steps)
        found[str(load)] = {**served.latencies_ms(), "longest_step": 1e3 * longest}
    return found


def _ratio_target(batch: int, ratio: Spread, device: str) -> Target:
    title = f"{batch} requests at a time, relative to one dense request at a time"
    return Target(title, ratio.median, "at least", LEAST_RATIO[device], "x")
