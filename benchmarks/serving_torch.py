"""Continuous batching on a GPU: a 2.65 B hybrid model in bfloat16, against its dense engine one request at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.engine_runs import EngineRuns
from benchmarks.measure import Spread, seconds
from benchmarks.paged_runs import paged_logits
from benchmarks.random_checkpoint import NemotronHShape, write_random_checkpoint
from benchmarks.report import Gate, Report, Target
from benchmarks.torch_engine import LOGITS_TOLERANCE, SHAPE, WEIGHTS
from benchmarks.traffic import Served, host_microseconds, poisson_arrivals, serve
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

if TYPE_CHECKING:
    from hybridge.exporter.options import ExportOptions

NAME = "serving_torch"
LEAST_RATIO, MOST_HOST_MICROSECONDS = 20.0, 300.0


@dataclass(frozen=True)
class TorchServingSettings:
    """Prompts of ``prompt`` tokens, ``new_tokens`` each, ``batch`` at a time; ``alone`` of them one after another.

    pressure: how many times as fast as they can be served requests arrive where the throughput is measured.
    loads: the same, where latencies are measured. device: "cuda" or "cpu". work: a folder that keeps checkpoint and
    artifacts, None for one that goes at the end.
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
    repeats: int = 3
    shape: NemotronHShape = SHAPE


def run(settings: TorchServingSettings) -> Report:
    """Compare logits of both engines, then serve."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        folder = Path(settings.work or name)
        dense_folder, paged_folder = prepared(folder, settings)
        dense = TorchEngine(dense_folder, device=settings.device)
        paged = TorchPagedEngine(paged_folder, device=settings.device)
        try:
            gates = tuple(_gates(dense, paged, settings))
            results = _measured(dense_folder, dense, paged, settings) if all(g.passed for g in gates) else {}
        finally:
            dense.close()
            paged.close()
    values = {key: value for key, value in asdict(settings).items() if key != "work"}
    return Report(NAME, values, gates, results, _targets(results, settings) if results else ())


def prepared(work: Path, settings: TorchServingSettings) -> tuple[Path, Path]:
    """The dense and the paged artifact in the folder ``work``, made where they are missing."""
    from hybridge.exporter.options import ExportOptions

    longest = settings.prompt + settings.new_tokens
    dense, paged = (
        linked_artifact(
            work,
            f"artifact-{layout}",
            settings.shape,
            ExportOptions(layout=layout, max_batch_size=rows, max_seq_len=longest, scan=False),
        )
        for layout, rows in (("dense", 1), ("paged", settings.batch))
    )
    return dense, paged


def linked_artifact(work: Path, name: str, shape: NemotronHShape, options: ExportOptions) -> Path:
    """The artifact ``name`` of the random checkpoint in the folder ``work``, both made where they are missing."""
    checkpoint, folder = work / "checkpoint", work / name
    if not (checkpoint / WEIGHTS).exists():
        write_random_checkpoint(checkpoint, shape)
    if not folder.exists():
        from hybridge.exporter.export import export_checkpoint

        export_checkpoint(checkpoint, folder, options)
    if not (folder / "weights" / WEIGHTS).exists():
        os.link(checkpoint / WEIGHTS, folder / "weights" / WEIGHTS)
    return folder


def _gates(dense: TorchEngine, paged: TorchPagedEngine, settings: TorchServingSettings) -> list[Gate]:
    """Logits after a prompt in two chunks and after single tokens, of one row and of all."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(dense.config.vocab_size, tokens + steps, seed=1)
    expected = EngineRuns(dense).logits(sequence, tokens, 1)
    gates = []
    for rows in (1, settings.batch):
        found = paged_logits(paged, sequence, tokens, rows)
        worst = max(relative_error(*pair) for pair in zip(found, expected, strict=True))
        checks = f"logits of {rows} packed rows of {tokens} tokens and {steps} decode steps against the dense engine"
        gates.append(Gate(f"{checks}, relative error", worst, LOGITS_TOLERANCE))
    return gates


def _measured(
    dense_folder: Path, dense: TorchEngine, paged: TorchPagedEngine, settings: TorchServingSettings
) -> dict[str, Any]:
    shape = settings.requests, settings.prompt
    prompts = np.random.default_rng(0).integers(0, paged.config.vocab_size, shape).tolist()
    loop = ServingLoop(paged, ServingSettings(max_rows=settings.batch, max_tokens=settings.max_tokens), (), None)
    # The first time kernels are compiled and graphs recorded; the second tells what a request in full batches takes.
    some = prompts[: 3 * settings.batch]
    each = min(serve(loop, some, [0.0] * len(some), settings.new_tokens).tokens[-1][-1] for _ in range(2)) / len(some)
    llm = LLM(dense_folder, engine=dense)
    alone, batched, hosts = [], [], []
    runs: list[Served] = []
    _alone(llm, prompts[:1], settings)
    for _ in range(settings.repeats):
        alone.append(_alone(llm, prompts[: settings.alone], settings))
        arrivals = poisson_arrivals(settings.requests, each / settings.pressure)
        runs.append(serve(loop, prompts, arrivals, settings.new_tokens))
        batched.append(runs[-1].rate())
        hosts.append(median(host_microseconds(runs[-1], settings.batch)))
    best = settings.new_tokens / max(batched)
    some = prompts[: settings.latency_requests]
    latencies = {
        str(load): serve(loop, some, poisson_arrivals(len(some), best / load), settings.new_tokens).latencies_ms()
        for load in settings.loads
    }
    return {
        "tokens_per_second": {
            "dense, one after another": Spread.of(alone).to_json(),
            "paged, Poisson arrivals": Spread.of(batched).to_json(),
        },
        "ratio": Spread.of_ratios(batched, alone).to_json(),
        "host_us": Spread.of(hosts).to_json(),
        "steps": _steps(runs[-1], settings.batch),
        "latency_ms": latencies,
        "memory": str(loop.pools),
        "graphs": {
            "decoding": sum(step.repeated.is_replayed for step in paged.decode_steps.values()),
            "mixed": sum(step.repeated.is_replayed for step in paged.mixed_steps.values()),
        },
        "device": EngineRuns(dense).device_name,
    }


def _alone(llm: LLM, prompts: Sequence[list[int]], settings: TorchServingSettings) -> float:
    """Tokens per second of the dense engine."""
    params = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)

    def generate() -> None:
        for prompt in prompts:
            llm.generate(prompt, params)

    return len(prompts) * settings.new_tokens / seconds(generate)


def _steps(served: Served, batch: int) -> dict[str, Any]:
    """Where the time of the steps went: those in which all rows decode, and those with tokens of prompts."""
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


def _targets(results: dict[str, Any], settings: TorchServingSettings) -> tuple[Target, ...]:
    batch = settings.batch
    throughput = f"{batch} requests at a time over one dense request after another"
    host = f"host's share of a decode step at batch {batch}"
    return (
        Target(throughput, results["ratio"]["median"], "at least", LEAST_RATIO, "x"),
        Target(host, results["host_us"]["median"], "at most", MOST_HOST_MICROSECONDS, "us"),
    )
