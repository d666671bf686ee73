"""The host's share of a decode step, without a model: planning, tables, greedy choice and stop conditions.

Reported separately: a batch whose rows all sample, each with its own temperature and seed; one of contexts of different
lengths, of which some need a block in every step; and steps that are launched ahead: the same, rows that sample, and
four requests for each row, so that prompts are computed beside rows that decode.
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
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, Sampler, SamplingParams, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

MOST_MICROSECONDS = 300.0
LEAST_AHEAD = 0.9


@dataclass(frozen=True)
class SchedulerSettings:
    """``batch`` sequences of ``context`` tokens that decode ``steps`` tokens together."""

    batch: int = 64
    context: int = 512
    steps: int = 256
    block_size: int = 16
    vocab: int = 1024
    repeats: int = 5

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.context + self.block_size + self.steps


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

    def fed_tokens(self) -> list[int]:
        return self._best.tolist()


class CountingEngine(ModelFreeEngine):
    """After the token at position p the best token is p modulo the vocabulary.

    The logits of the k-th row that asks for some are the same in every step.
    """

    name: ClassVar[str] = "counting"

    def __init__(self, settings: SchedulerSettings, chains: bool = False) -> None:
        """``chains``: whether it launches steps ahead; ``ahead`` counts them."""
        self._chains, self.ahead = chains, 0
        layers = (1, KVLayerConfig(1, 1)), (1, RecurrentLayerConfig(1, 1, 1, 1, 2))
        longest = settings.longest
        config = hybrid_config("counting", settings.vocab, settings.batch, longest, *layers)
        super().__init__(config, settings.batch * longest)
        normal = np.random.default_rng(0).standard_normal((settings.batch, settings.vocab))
        self.logits = (3 * normal).astype(np.float32)

    @property
    def runs_ahead(self) -> bool:
        return True

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> CountingResult:
        best = inputs.positions[inputs.logits_indices] % self.config.vocab_size
        return CountingResult(best, self.logits[: best.size])

    @property
    def chains_steps(self) -> bool:
        return self._chains

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> CountingResult:
        self.ahead += 1
        return self.launch(inputs, feeding.samplings)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        raise EngineError("the counting engine has no logits: launch its steps")


def run(settings: SchedulerSettings) -> Report:
    """Let the batch decode ``repeats`` times; each repeat gives the median of its steps."""
    even = [settings.context] * settings.batch
    uneven = [settings.context + row % settings.block_size for row in range(settings.batch)]
    times: dict[str, list[float]] = {"host_us": [], "host_sampled_us": [], "host_uneven_us": []}
    # Contexts, new tokens of each request, and whether they sample.
    same = [settings.steps] * settings.batch
    others = [1 + 37 * request % settings.steps for request in range(4 * settings.batch)]
    kinds = {"": (uneven, same, False), "_sampled": (even, same, True), "_mixed": (4 * uneven, others, False)}
    ahead: dict[str, list[float]] = {name + kind: [] for kind in kinds for name in ("python_ahead_us", "share_ahead")}
    wrong = 0
    for _ in range(settings.repeats):
        for name, contexts, samples, expected in (
            ("host_us", even, False, _best(settings, even)),
            ("host_sampled_us", even, True, _sampled_alone(settings)),
            ("host_uneven_us", uneven, False, _best(settings, uneven)),
        ):
            served = _served(settings, CountingEngine(settings), contexts, samples)
            times[name].append(median(host_microseconds(served, settings.batch)))
            wrong += sum(list(answer) != right for answer, right in zip(served.answers, expected, strict=True))
        for kind, (contexts, lengths, samples) in kinds.items():
            engine = CountingEngine(settings, chains=True)
            served = _served(settings, engine, contexts, samples, lengths)
            ahead["python_ahead_us" + kind].append(1e6 * median(step.wall for step in served.steps))
            ahead["share_ahead" + kind].append(engine.ahead / len(served.steps))
            expected = _sampled_alone(settings) if samples else _best(settings, contexts)
            pairs = zip(served.answers, expected, lengths, strict=True)
            wrong += sum(list(answer) != right[:length] for answer, right, length in pairs)
    gates = require(Gate("answers that differ from the engine's, or from those sampled alone", float(wrong), 0.0))
    results = spreads(times | ahead)
    title = f"host time of a decode step at batch {settings.batch}"
    share = "share of steps launched ahead"
    shares = {"": share, "_sampled": f"{share} (sampling)", "_mixed": f"{share} (with prompts)"}
    return Report(
        gates,
        results,
        (
            Target(title, results["host_us"].median, "at most", MOST_MICROSECONDS, "us"),
            *(
                Target(name, results["share_ahead" + kind].median, "at least", LEAST_AHEAD, "")
                for kind, name in shares.items()
            ),
        ),
    )


def _params(row: int, samples: bool) -> SamplingParams:
    return SamplingParams(temperature=0.5 + row / 100, seed=row) if samples else SamplingParams()


def _served(
    settings: SchedulerSettings,
    engine: CountingEngine,
    contexts: Sequence[int],
    samples: bool,
    lengths: Sequence[int] | None = None,
) -> Served:
    """All requests at once, as many as there are rows or more."""
    memory = settings.batch * (settings.longest + 2 * settings.block_size + 1) * 2
    loop = ServingLoop(engine, ServingSettings(settings.block_size, memory_bytes=memory), (), None)
    params = [_params(row, samples) for row in range(len(contexts))]
    prompts = [[1] * context for context in contexts]
    return serve(loop, prompts, [0.0] * len(contexts), lengths or settings.steps, params)


def _best(settings: SchedulerSettings, contexts: Sequence[int]) -> list[list[int]]:
    """The best tokens of the engine."""
    return [[(context - 1 + step) % settings.vocab for step in range(settings.steps)] for context in contexts]


def _sampled_alone(settings: SchedulerSettings) -> list[list[int]]:
    """The tokens that each request samples from its logits by itself."""
    found = []
    for row, logits in enumerate(CountingEngine(settings).logits):
        sampler = Sampler(_params(row, samples=True))
        found.append([sampler.sample(logits)[0] for _ in range(settings.steps)])
    return found
