"""Continuous batching against one request after another, and latencies under Poisson arrivals.

--engine torch measures a model of 2.65 B parameters on a GPU (benchmarks/serving_torch.py), else the checkpoint that
ships is measured on the CPU. --plot FILE draws the latencies (needs the extra plot). --work FOLDER as in
benchmarks.torch_engine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.artifacts import DEMO_CHECKPOINT, exported
from benchmarks.command import run_command
from benchmarks.measure import Spread, take_turns
from benchmarks.plots import plot_latencies
from benchmarks.report import Gate, Report, Target
from benchmarks.traffic import poisson_arrivals, serve
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams

NAME, REPEATS = "serving", 5
LEAST_RATIO = 2.0


@dataclass(frozen=True)
class ServingBenchmarkSettings:
    """``requests`` prompts of ``prompt`` tokens and ``new_tokens`` each, ``batch`` at a time.

    loads: requests that arrive in the time in which the batched run finishes one, for the latencies.
    """

    requests: int = 16
    batch: int = 8
    prompt: int = 64
    new_tokens: int = 48
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    threads: int = 2
    repeats: int = REPEATS


def run(settings: ServingBenchmarkSettings) -> Report:
    """Export the checkpoint that ships in both layouts and serve the same requests in three ways."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        length = settings.prompt + settings.new_tokens
        dense_folder = exported(DEMO_CHECKPOINT, Path(name) / "dense", max_seq_len=length)
        paged_folder = Path(name) / "paged"
        options = ExportOptions(layout="paged", max_batch_size=settings.batch, max_seq_len=length, scan=False)
        export_checkpoint(DEMO_CHECKPOINT, paged_folder, options)
        with LLM(dense_folder, threads=settings.threads) as dense, LLM(paged_folder, threads=settings.threads) as paged:
            shape = settings.requests, settings.prompt
            prompts = rng.integers(0, dense.config.vocab_size, shape).tolist()
            ways: dict[str, Callable[[], list[Generation]]] = {
                "dense, one after another": lambda: _one_by_one(dense, prompts, settings),
                "paged, one after another": lambda: _one_by_one(paged, prompts, settings),
                "paged, batched": lambda: paged.generate(prompts, _sampling(settings)),
            }
            gate = _gate({name: way() for name, way in ways.items()})
            if not gate.passed:
                return Report(NAME, asdict(settings), (gate,))
            times = take_turns({name: _Timed(way) for name, way in ways.items()}, settings.repeats)
            batched = Spread.of(times["paged, batched"]).median
            each = batched / settings.requests
            latencies = {str(load): _latencies(paged, prompts, settings, each / load) for load in settings.loads}
    tokens = settings.requests * settings.new_tokens
    ratio = Spread.of_ratios(times["dense, one after another"], times["paged, batched"])
    results = {
        "tokens_per_second": {name: Spread.of(tokens / t for t in values).to_json() for name, values in times.items()},
        "ratio": ratio.to_json(),
        "latency_ms": latencies,
    }
    title = f"{settings.batch} requests at a time over one dense request after another"
    return Report(
        NAME, asdict(settings), (gate,), results, (Target(title, ratio.median, "at least", LEAST_RATIO, "x"),)
    )


class _Timed:
    """Called, returns the seconds that ``way`` takes."""

    def __init__(self, way: Callable[[], object]) -> None:
        self._way = way

    def __call__(self) -> float:
        started = time.perf_counter()
        self._way()
        return time.perf_counter() - started


def _sampling(settings: ServingBenchmarkSettings) -> SamplingParams:
    return SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)


def _one_by_one(llm: LLM, prompts: Sequence[list[int]], settings: ServingBenchmarkSettings) -> list[Generation]:
    return [llm.generate(prompt, _sampling(settings)) for prompt in prompts]


def _latencies(
    llm: LLM, prompts: Sequence[list[int]], settings: ServingBenchmarkSettings, interval: float
) -> dict[str, float]:
    """With ``interval`` seconds on average from request to request."""
    return serve(llm.loop, prompts, poisson_arrivals(len(prompts), interval), settings.new_tokens).latencies_ms()


def _gate(answers: dict[str, list[Generation]]) -> Gate:
    first, *others = ([answer.token_ids for answer in each] for each in answers.values())
    wrong = sum(tokens != right for other in others for tokens, right in zip(other, first, strict=True))
    return Gate("answers that differ from those of the dense engine", float(wrong), 0.0)


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", choices=("onnxruntime", "torch"), default="onnxruntime")
    parser.add_argument("--work")
    parser.add_argument("--plot", type=Path)
    known, rest = parser.parse_known_args()
    hardware = "NVIDIA GPU" if known.engine == "torch" else "CPU"

    def benchmark(repeats: int) -> Report:
        if known.engine == "torch":
            from benchmarks import serving_torch

            report = serving_torch.run(serving_torch.TorchServingSettings(work=known.work, repeats=repeats))
        else:
            report = run(ServingBenchmarkSettings(repeats=repeats))
        if report.passed and known.plot:
            plot_latencies(report.results["latency_ms"], known.plot, hardware)
        return report

    return run_command(__doc__ or "", benchmark, REPEATS, rest)


if __name__ == "__main__":
    sys.exit(main())
