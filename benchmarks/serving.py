"""Continuous batching on the CPU engine against one request after another, and latencies under Poisson arrivals."""

from __future__ import annotations

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
from benchmarks.report import Gate, Report, Target
from exporter.export import export_checkpoint
from exporter.options import ExportOptions
from runtime.generation import Generation
from runtime.llm import LLM
from runtime.sampling import SamplingParams
from runtime.serving.request import ServingRequest

NAME, REPEATS = "serving", 5
LEAST_RATIO = 2.0


@dataclass(frozen=True)
class ServingBenchmarkSettings:
    """``requests`` prompts of ``prompt`` tokens and ``new_tokens`` each, ``batch`` at a time.

    load: requests that arrive in the time in which the batched run finishes one, for the latencies.
    """

    requests: int = 16
    batch: int = 8
    prompt: int = 64
    new_tokens: int = 48
    load: float = 0.7
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
            latencies = _latencies(paged, prompts, settings, batched / settings.requests / settings.load)
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


def _gate(answers: dict[str, list[Generation]]) -> Gate:
    first, *others = ([answer.token_ids for answer in each] for each in answers.values())
    wrong = sum(tokens != right for other in others for tokens, right in zip(other, first, strict=True))
    return Gate("answers that differ from those of the dense engine", float(wrong), 0.0)


def _latencies(
    llm: LLM, prompts: Sequence[list[int]], settings: ServingBenchmarkSettings, interval: float
) -> dict[str, float]:
    """Milliseconds to the first token and between tokens, at 50 and 99 of 100, with ``interval`` seconds on average
    from request to request."""
    arrivals = np.cumsum(np.random.default_rng(1).exponential(interval, len(prompts)))
    waiting = list(zip(arrivals.tolist(), prompts, strict=True))
    times: dict[int, list[float]] = {}
    loop, started = llm.loop, time.perf_counter()
    while waiting or loop.busy:
        now = time.perf_counter() - started
        while waiting and waiting[0][0] <= now:
            arrival, prompt = waiting.pop(0)
            request = llm._text.request(prompt, _sampling(settings), llm.max_seq_len)
            times[loop.add(ServingRequest(request))] = [arrival]
        if not loop.busy:
            time.sleep(max(0.0, waiting[0][0] - now))
            continue
        for output in loop.step():
            if output.error is not None:
                raise output.error
            times[output.request_id].append(time.perf_counter() - started)
    first = [marks[1] - marks[0] for marks in times.values()]
    between = np.concatenate([np.diff(marks[1:]) for marks in times.values()])
    parts = {"first_token": np.array(first), "between_tokens": between}
    return {f"{name}_p{q}": 1e3 * float(np.percentile(v, q)) for name, v in parts.items() for q in (50, 99)}


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(ServingBenchmarkSettings(repeats=repeats)), REPEATS))
