"""The host's share of a decode step, without a model: planning, tables, greedy choice and stop conditions.

Work that is done while the device computes the next step is reported apart, and so is a batch whose rows all sample,
each with a temperature and a seed of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import numpy as np

from benchmarks.measure import spreads
from benchmarks.model_free_engine import ModelFreeEngine, hybrid_config
from benchmarks.runner import Gate, Report, Target, require
from hybridge.artifact.errors import EngineError
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.packing import packed_inputs
from hybridge.runtime.serving.request import Output, ServingRequest
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

    def launch(self, inputs: PackedInputs) -> CountingResult:
        best = inputs.positions[inputs.logits_indices] % self.config.vocab_size
        return CountingResult(best, self.logits[: best.size])

    def step(self, inputs: PackedInputs) -> np.ndarray:
        raise EngineError("the counting engine has no logits: launch its steps")


def run(settings: SchedulerSettings) -> Report:
    """Let the batch decode ``repeats`` times; each repeat gives the median of its steps."""
    times: dict[str, list[float]] = {}
    wrong = 0
    for _ in range(settings.repeats):
        greedy, outputs = _steps(settings, samples=False)
        wrong += _wrong(outputs, [_expected(settings)] * settings.batch)
        sampled, outputs = _steps(settings, samples=True)
        wrong += _wrong(outputs, _sampled_alone(settings))
        found = {**greedy, "host, sampled": sampled["host"], **_parts(settings)}
        for name, seconds in found.items():
            times.setdefault(name, []).append(median(seconds))
    gates = require(Gate("tokens that differ from the engine's, or from those sampled alone", float(wrong), 0.0))
    measured = spreads(times, 1e6)
    host = measured.pop("host")
    results = {"host_us": host, "host_sampled_us": measured.pop("host, sampled"), "parts_us": measured}
    title = f"host time of a decode step at batch {settings.batch}"
    return Report(gates, results, (Target(title, host.median, "at most", MOST_MICROSECONDS, "us"),))


def _params(row: int, samples: bool) -> SamplingParams:
    return SamplingParams(temperature=0.5 + row / 100, seed=row) if samples else SamplingParams()


def _loop(settings: SchedulerSettings, samples: bool = False) -> ServingLoop:
    """A loop whose requests have all been prefilled, row k of the step being the k-th of them."""
    engine = CountingEngine(settings)
    longest = settings.context + settings.steps
    memory = settings.batch * (longest + 2 * settings.block_size + 1) * 2
    loop = ServingLoop(engine, ServingSettings(settings.block_size, memory_bytes=memory), (), None)
    for row in range(settings.batch):
        loop.add(ServingRequest(Request((1,) * settings.context, _params(row, samples), settings.steps), row))
    while loop.scheduler.waiting or any(s.pending > 1 for s in loop.scheduler.sequences.values()):
        loop.step()
    return loop


def _steps(settings: SchedulerSettings, samples: bool) -> tuple[dict[str, list[float]], list[Output]]:
    """Of each step the seconds that a device waits for the host and those beside the device, and all outputs.

    The last step ends all requests at once.
    """
    loop = _loop(settings, samples)
    host, beside, outputs = [], [], []
    while loop.busy:
        started = time.perf_counter()
        outputs += loop.step()
        host.append(loop.last_times.host)
        # A call launches the next step, which takes as long as the launch of its own did.
        beside.append(time.perf_counter() - started - host[-1])
    return {"host": host, "beside the device": beside}, outputs


def _parts(settings: SchedulerSettings) -> dict[str, list[float]]:
    """Seconds of planning, packing and committing, step by step."""
    loop = _loop(settings)
    loop.settle()
    engine, scheduler = CountingEngine(settings), loop.scheduler
    times: dict[str, list[float]] = {"plan": [], "pack": [], "commit": []}
    for _ in range(settings.steps // 2):
        marks = [time.perf_counter()]
        plan = scheduler.plan()
        marks.append(time.perf_counter())
        if plan is None:
            break
        packed_inputs(plan, scheduler.sequences, scheduler.manager, engine)
        marks.append(time.perf_counter())
        scheduler.commit(plan)
        marks.append(time.perf_counter())
        for sequence in scheduler.sequences.values():
            sequence.append(1)
        for name, start, end in zip(times, marks, marks[1:], strict=False):
            times[name].append(end - start)
    return times


def _wrong(outputs: Sequence[Output], expected: Sequence[Sequence[int]]) -> int:
    """Tokens of the finished requests that are not the ``expected`` ones, by request."""
    pieces = [output.piece for output in outputs if output.piece and output.piece.generation]
    answers = {piece.index: piece.generation.token_ids for piece in pieces if piece.generation}
    wrong = 0
    for place, answer in answers.items():
        wrong += sum(token != right for token, right in zip(answer, expected[place], strict=True))
    return wrong + sum(map(len, expected)) - sum(map(len, answers.values()))


def _expected(settings: SchedulerSettings) -> list[int]:
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
