"""The host's share of a decode step, without a model: planning, tables, greedy choice and stop conditions.

A batch whose rows all sample, each with a temperature and a seed of its own, is reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import numpy as np

from benchmarks.measure import spreads
from benchmarks.model_free_engine import ModelFreeEngine, hybrid_config
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import Served, host_microseconds, serve
from hybridge.artifact.errors import EngineError
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, Sampler, SamplingParams, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

MOST_MICROSECONDS = 300.0


@dataclass(frozen=True)
class SchedulerSettings:
    """``batch`` sequences of ``context`` tokens that decode ``steps`` tokens together."""

    batch: int = 64
    context: int = 512
    steps: int = 256
    block_size: int = 16
    vocab: int = 1024
    repeats: int = 5


class CountingResult(StepResult):
    """Result of a step that is never ready before it is waited for. ``logits`` [m, vocab] do not match ``best``."""

    def __init__(self, best: np.ndarray, logits: np.ndarray) -> None:
        self._best, self._logits = best, logits

    @property
    def is_ready(self) -> bool:
        return False

    def best_tokens(self) -> list[int | None]:
        return list(self._best.tolist())

    def logits(self, index: int) -> np.ndarray:
        row: np.ndarray = self._logits[index].copy()
        return row

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        return self._logits[list(indices)]


class CountingEngine(ModelFreeEngine):
    """After the token at position p the best token is p modulo the vocabulary.

    The logits of the k-th row that asks for some are the same in every step.
    """

    name: ClassVar[str] = "counting"

    def __init__(self, settings: SchedulerSettings) -> None:
        layers = (1, KVLayerConfig(1, 1)), (1, RecurrentLayerConfig(1, 1, 1, 1, 2))
        longest = settings.context + settings.steps
        config = hybrid_config("counting", settings.vocab, settings.batch, longest, *layers)
        super().__init__(config, settings.batch * settings.context)
        normal = np.random.default_rng(0).standard_normal((settings.batch, settings.vocab))
        self.logits = (3 * normal).astype(np.float32)

    @property
    def slot_bytes(self) -> int:
        return 1

    def block_bytes(self, block_size: int) -> int:
        return block_size

    @property
    def runs_ahead(self) -> bool:
        return True

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> CountingResult:
        best = inputs.positions[inputs.logits_indices] % self.config.vocab_size
        return CountingResult(best, self.logits[: best.size])

    def step(self, inputs: PackedInputs) -> np.ndarray:
        raise EngineError("the counting engine has no logits: launch its steps")


def run(settings: SchedulerSettings) -> Report:
    """Let the batch decode ``repeats`` times; each repeat gives the median of its steps."""
    times: dict[str, list[float]] = {"host_us": [], "host_sampled_us": []}
    wrong = 0
    for _ in range(settings.repeats):
        for name, samples, expected in (
            ("host_us", False, [_best(settings)] * settings.batch),
            ("host_sampled_us", True, _sampled_alone(settings)),
        ):
            served = _served(settings, samples)
            times[name].append(median(host_microseconds(served, settings.batch)))
            wrong += sum(list(answer) != right for answer, right in zip(served.answers, expected, strict=True))
    gates = require(Gate("answers that differ from the engine's, or from those sampled alone", float(wrong), 0.0))
    results = spreads(times)
    title = f"host time of a decode step at batch {settings.batch}"
    return Report(gates, results, (Target(title, results["host_us"].median, "at most", MOST_MICROSECONDS, "us"),))


def _params(row: int, samples: bool) -> SamplingParams:
    return SamplingParams(temperature=0.5 + row / 100, seed=row) if samples else SamplingParams()


def _served(settings: SchedulerSettings, samples: bool) -> Served:
    """All requests at once; the last step ends all of them."""
    engine = CountingEngine(settings)
    longest = settings.context + settings.steps
    memory = settings.batch * (longest + 2 * settings.block_size + 1) * 2
    loop = ServingLoop(engine, ServingSettings(settings.block_size, memory_bytes=memory), (), None)
    params = [_params(row, samples) for row in range(settings.batch)]
    prompts = [[1] * settings.context] * settings.batch
    return serve(loop, prompts, [0.0] * settings.batch, settings.steps, params)


def _best(settings: SchedulerSettings) -> list[int]:
    """The best tokens of the engine."""
    first = settings.context - 1
    return [position % settings.vocab for position in range(first, first + settings.steps)]


def _sampled_alone(settings: SchedulerSettings) -> list[list[int]]:
    """The tokens that each request samples from its logits by itself."""
    found = []
    for row, logits in enumerate(CountingEngine(settings).logits):
        sampler = Sampler(_params(row, samples=True))
        found.append([sampler.sample(logits)[0] for _ in range(settings.steps)])
    return found
