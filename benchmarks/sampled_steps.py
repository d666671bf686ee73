"""Decode steps of many rows whose tokens are sampled on the GPU, compared with greedy steps: a 2.65 B hybrid model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import device_name
from benchmarks.measure import Spread, spreads, take_turns
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.sampling import NO_SAMPLING, Sampler, SamplingParams, TokenSampling, sample_rows

_BLOCK = 16
# Steps before the clock starts: the first runs directly, the second records the graph.
_WARM_STEPS = 3


@dataclass(frozen=True)
class SampledStepSettings:
    """``steps`` decode steps of ``rows`` rows, each with its own seed.

    goal: time of a step that samples divided by that of a greedy one. device: "cuda" or "cpu". work: a folder that
    keeps checkpoint and artifact.
    """

    device: str = "cuda"
    rows: int = 64
    steps: int = 64
    repeats: int = 5
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 0.9
    work: str | None = None
    model: Config = field(default_factory=lambda: {**GPU_MODEL, "vocab_size": 151936})
    goal: float = 1.1


def run(settings: SampledStepSettings) -> Report:
    """Compare sampled tokens with those that the host samples from the same logits, then measure."""
    count = _WARM_STEPS + settings.steps
    with work_folder(settings.work) as work:
        limits = {"max_batch_size": settings.rows, "max_seq_len": count}
        folder = linked_artifact(work, "artifact-rows", settings.model, layout="paged", **limits)
        with closing(TorchPagedEngine(folder, settings.device)) as engine:
            gates = require(_gate(engine, settings))
            ways = {"greedy": NO_SAMPLING, "sampled": _samplings(settings)}
            turns = {name: partial(_step_seconds, engine, settings, way) for name, way in ways.items()}
            times = take_turns(turns, settings.repeats)
            device = device_name(engine.device)
    ratio = Spread.of_ratios(times["sampled"], times["greedy"])
    target = Target(f"a sampled step of {settings.rows} rows", ratio.median, "at most", settings.goal, "times")
    return Report(gates, {"device": device, "step_ms": spreads(times, 1e3), "step_ratio": ratio}, (target,))


def _samplings(settings: SampledStepSettings) -> dict[int, TokenSampling]:
    params = SamplingParams(temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, seed=1)
    vocab = int(settings.model["vocab_size"])
    return {row: Sampler(params, choice=row).draw(vocab) for row in range(settings.rows)}


def _gate(engine: TorchPagedEngine, settings: SampledStepSettings) -> Gate:
    """Two steps: the second one is recorded on a GPU."""
    samplings, wrong = _samplings(settings), 0
    pools, ids = EqualRows(engine, settings.rows, 2, _BLOCK), _tokens(settings.rows)
    for past in range(2):
        result = engine.launch(pools.inputs(ids, past), samplings)
        found = result.sampled(samplings)
        expected = sample_rows(list(samplings.values()), result.rows(list(samplings)))
        wrong += sum(found[row] != token for row, token in enumerate(expected))
    return Gate("tokens of two steps that differ from those of the host", float(wrong), 0.0)


def _step_seconds(
    engine: TorchPagedEngine, settings: SampledStepSettings, samplings: Mapping[int, TokenSampling]
) -> float:
    """Seconds of one decode step, with its tokens in host memory; the states are empty at first."""
    count = _WARM_STEPS + settings.steps
    pools, ids = EqualRows(engine, settings.rows, count, _BLOCK), _tokens(settings.rows)
    started = 0.0
    for past in range(count):
        if past == _WARM_STEPS:
            started = time.perf_counter()
        result = engine.launch(pools.inputs(ids, past), samplings)
        if samplings:
            result.sampled(samplings)
            samplings = {row: after for row, how in samplings.items() if (after := how.following()) is not None}
        else:
            result.best_tokens()
    return (time.perf_counter() - started) / settings.steps


def _tokens(rows: int) -> np.ndarray:
    """Different tokens [rows, 1], so that rows have different logits."""
    return np.arange(1, rows + 1, dtype=np.int64)[:, None]
