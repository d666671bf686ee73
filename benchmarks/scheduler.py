"""The host's share of a decode step, without a model: planning, tables, greedy choice and stop conditions.

What is done while the device works on the next step, the pieces, is told apart. So is a batch of which every row draws
its tokens, with a temperature and a seed of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import ClassVar

import numpy as np

from benchmarks.command import run_command
from benchmarks.measure import Spread
from benchmarks.report import Gate, Report, Target
from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.config import ATTENTION, MAMBA, RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.paged import PackedInputs, PagedEngine, PoolSizes, StepLimits
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.packing import packed_inputs
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings

NAME, REPEATS = "scheduler", 5
MOST_MICROSECONDS = 300.0


@dataclass(frozen=True)
class SchedulerSettings:
    """``batch`` sequences of ``context`` tokens that decode ``steps`` tokens together."""

    batch: int = 64
    context: int = 512
    steps: int = 256
    block_size: int = 16
    vocab: int = 1024
    repeats: int = REPEATS


class CountingResult(StepResult):
    """Of a step that is never done before somebody waits for it. ``logits`` [m, vocab] are not those of ``best``."""

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


class CountingEngine(PagedEngine):
    """Computes nothing: after the token at position p the best token is p modulo the vocabulary.

    The logits of the k-th row that asks for some are the same in every step.
    """

    name: ClassVar[str] = "counting"

    def __init__(self, settings: SchedulerSettings) -> None:
        self.config = _config(settings)
        self._limits = StepLimits(settings.batch * settings.context, settings.batch)
        normal = np.random.default_rng(0).standard_normal((settings.batch, settings.vocab))
        self.logits = (3 * normal).astype(np.float32)

    @property
    def limits(self) -> StepLimits:
        return self._limits

    @property
    def slot_bytes(self) -> int:
        return 1

    def block_bytes(self, block_size: int) -> int:
        return block_size

    def allocate_pools(self, sizes: PoolSizes) -> None:
        """There are none."""

    @property
    def runs_ahead(self) -> bool:
        return True

    def launch(self, inputs: PackedInputs) -> CountingResult:
        best = inputs.positions[inputs.logits_indices] % self.config.vocab_size
        return CountingResult(best, self.logits[: best.size])

    def step(self, inputs: PackedInputs) -> np.ndarray:
        raise EngineError("the counting engine has no logits: launch its steps")

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """There are none."""

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """There are none."""

    def zero_slots(self, slots: Sequence[int]) -> None:
        """There are none."""

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        raise MemoryError("this engine has no memory to swap")

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        raise MemoryError("this engine has no memory to swap")


def run(settings: SchedulerSettings) -> Report:
    """Let the batch decode ``repeats`` times; each repeat gives the median of its steps."""
    loops: list[float] = []
    drawing: list[float] = []
    parts: dict[str, list[float]] = {"plan": [], "pack": [], "commit": [], "beside the device": []}
    wrong = 0
    for _ in range(settings.repeats):
        host, beside, outputs = _steps(settings, draws=False)
        loops.append(median(host))
        parts["beside the device"].append(median(beside))
        wrong += _wrong(outputs, [_expected(settings)] * settings.batch)
        host, _, outputs = _steps(settings, draws=True)
        drawing.append(median(host))
        wrong += _wrong(outputs, _drawn_alone(settings))
        for name, times in _parts(settings).items():
            parts[name].append(median(times))
    gates = (Gate("tokens that differ from those that the engine named, or that are drawn alone", float(wrong), 0.0),)
    if wrong:
        return Report(NAME, asdict(settings), gates)
    total = Spread.of(1e6 * value for value in loops)
    results = {
        "host_us": total.to_json(),
        "host_of_rows_that_draw_us": Spread.of(1e6 * value for value in drawing).to_json(),
        "parts_us": {name: Spread.of(1e6 * value for value in values).to_json() for name, values in parts.items()},
    }
    title = f"host time of a decode step at batch {settings.batch}"
    target = Target(title, total.median, "at most", MOST_MICROSECONDS, "us")
    return Report(NAME, asdict(settings), gates, results, (target,))


def _params(row: int, draws: bool) -> SamplingParams:
    return SamplingParams(temperature=0.5 + row / 100, seed=row) if draws else SamplingParams()


def _loop(settings: SchedulerSettings, draws: bool = False) -> ServingLoop:
    """A loop whose requests have all been prefilled, row k of the step being the k-th of them."""
    engine = CountingEngine(settings)
    longest = settings.context + settings.steps
    memory = settings.batch * (longest + 2 * settings.block_size + 1) * 2
    loop = ServingLoop(engine, ServingSettings(settings.block_size, memory_bytes=memory), (), None)
    for row in range(settings.batch):
        loop.add(ServingRequest(Request((1,) * settings.context, _params(row, draws), settings.steps), row))
    while loop.scheduler.waiting or any(s.pending > 1 for s in loop.scheduler.sequences.values()):
        loop.step()
    return loop


def _steps(settings: SchedulerSettings, draws: bool) -> tuple[list[float], list[float], list[Output]]:
    """Of each step the seconds that a device waits for it and those beside the device, and what the steps gave.

    The last step ends all requests at once.
    """
    loop = _loop(settings, draws)
    host, beside, outputs = [], [], []
    while loop.busy:
        started = time.perf_counter()
        outputs += loop.step()
        host.append(loop.last_times.host)
        # A call launches the next step, which takes as long as the launch of its own did.
        beside.append(time.perf_counter() - started - host[-1])
    return host, beside, outputs


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
    answers = [output.piece.generation for output in outputs if output.piece and output.piece.generation]
    places = [output.piece.index for output in outputs if output.piece and output.piece.generation]
    wrong = 0
    for place, answer in zip(places, answers, strict=True):
        wrong += sum(token != right for token, right in zip(answer.token_ids, expected[place], strict=True))
    return wrong + sum(map(len, expected)) - sum(len(answer.token_ids) for answer in answers)


def _expected(settings: SchedulerSettings) -> list[int]:
    """The tokens that the engine names."""
    first = settings.context - 1
    return [position % settings.vocab for position in range(first, first + settings.steps)]


def _drawn_alone(settings: SchedulerSettings) -> list[list[int]]:
    """The tokens that each request draws from its logits by itself."""
    found = []
    for row, logits in enumerate(CountingEngine(settings).logits):
        sampler = Sampler(_params(row, draws=True))
        found.append([sampler.sample(logits)[0] for _ in range(settings.steps)])
    return found


def _config(settings: SchedulerSettings) -> RuntimeConfig:
    tokens = Binding("input_ids", DType.INT64, ("tokens",))
    logits = Binding("logits", DType.FLOAT32, ("num_logits", settings.vocab))
    return RuntimeConfig(
        model_type="counting",
        layout="paged",
        dtype=DType.FLOAT32,
        vocab_size=settings.vocab,
        hidden_size=1,
        max_batch_size=settings.batch,
        max_seq_len=settings.context + settings.steps,
        layer_types=(ATTENTION, MAMBA),
        kv_layers=(KVLayerConfig(1, 1),),
        kv_cache_dtype=DType.FLOAT32,
        recurrent_layers=(RecurrentLayerConfig(1, 1, 1, 1, 2),),
        recurrent_state_dtype=DType.FLOAT32,
        conv_state_dtype=DType.FLOAT32,
        eos_token_ids=(),
        bindings=GraphBindings((tokens,), (logits,)),
    )


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(SchedulerSettings(repeats=repeats)), REPEATS))
