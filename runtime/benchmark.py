"""Speed of an engine: prompt processing (pp) and token generation (tg), in the terms of llama-bench."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.serving.open import as_paged

# Tokens of a block, where the engine leaves the choice.
_BLOCK_SIZE = 16
# Scans work in chunks: steps of a multiple of this many tokens per row waste none.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Distribution:
    """Percentiles of a measured time, in seconds; p50 is the median."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Distribution:
        """The distribution of at least one measurement (percentiles interpolate linearly)."""
        values = np.asarray(list(seconds), np.float64)
        p50, p95, p99 = (float(p) for p in np.percentile(values, [50, 95, 99]))
        return cls(values.size, float(values.mean()), p50, p95, p99)


@dataclass(frozen=True)
class PrefillResult:
    """``name`` pp<tokens>: each of ``rows`` prompts of ``prompt_tokens``; the time to their first token."""

    name: str
    rows: int
    prompt_tokens: int
    time_to_first_token: Distribution
    tokens_per_second: float


@dataclass(frozen=True)
class DecodeResult:
    """``name`` tg<tokens>: ``new_tokens`` after a prompt of ``context_tokens``; the time of each step of all rows.

    ``engine_share`` is the part of that time spent inside the engine; the rest is this runtime's own work.
    """

    name: str
    rows: int
    context_tokens: int
    new_tokens: int
    time_per_token: Distribution
    tokens_per_second: float
    engine_share: float


@dataclass(frozen=True)
class BenchmarkReport:
    """Measurements, with engine and model. Rates use the medians."""

    engine: str
    model_type: str
    dtype: str
    max_seq_len: int
    repetitions: int
    prefill: tuple[PrefillResult, ...]
    decode: tuple[DecodeResult, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; times in seconds."""
        return asdict(self)


def run_benchmark(
    engine: DenseEngine | PagedEngine,
    prompt_tokens: Sequence[int] = (512,),
    new_tokens: Sequence[int] = (128,),
    context_tokens: int = 1,
    rows: int = 1,
    repetitions: int = 5,
    warmup: int = 1,
    progress: Progress | None = None,
) -> BenchmarkReport:
    """Measure every prompt length in ``prompt_tokens`` and every count in ``new_tokens`` (greedy, seeded prompts).

    Each measurement starts from empty states, is repeated ``repetitions`` times after ``warmup`` unmeasured runs,
    and includes choosing the tokens. RequestError when a length or ``rows`` exceeds what the engine holds.
    """
    engine = as_paged(engine)
    _check(engine, prompt_tokens, new_tokens, context_tokens, rows, repetitions, warmup)
    shown = progress or NoProgress()
    shown.start("benchmark", (len(prompt_tokens) + len(new_tokens)) * (repetitions + warmup), "runs")
    prefill, decode = [], []
    for count in prompt_tokens:
        runs = [_prefill(engine, rows, count, shown) for _ in range(warmup + repetitions)][warmup:]
        times = Distribution.of(runs)
        prefill.append(PrefillResult(f"pp{count}", rows, count, times, rows * count / times.p50))
    for count in new_tokens:
        decode_runs = [_decode(engine, rows, context_tokens, count, shown) for _ in range(warmup + repetitions)][
            warmup:
        ]
        steps = Distribution.of(step for run in decode_runs for step, _ in run)
        inside = sum(engine_time for run in decode_runs for _, engine_time in run)
        share = inside / sum(step for run in decode_runs for step, _ in run)
        decode.append(DecodeResult(f"tg{count}", rows, context_tokens, count, steps, rows / steps.p50, share))
    shown.finish()
    config = engine.config
    return BenchmarkReport(
        engine=engine.name,
        model_type=config.model_type,
        dtype=config.dtype.value,
        max_seq_len=config.max_seq_len,
        repetitions=repetitions,
        prefill=tuple(prefill),
        decode=tuple(decode),
    )


class _Rows:
    """Rows that advance together from empty states; ``engine_seconds`` is the time inside of the engine so far."""

    def __init__(self, engine: PagedEngine, rows: int, tokens: int) -> None:
        """Pools for ``rows`` of at most ``tokens`` tokens."""
        self._engine, self._rows = engine, EqualRows(engine, rows, tokens, engine.block_size(_BLOCK_SIZE))
        self._length, self.engine_seconds = 0, 0.0

    def feed(self, ids: np.ndarray) -> np.ndarray:
        """Feed ``ids`` [rows, tokens]; the most likely next token of each [rows, 1]."""
        rows, tokens = ids.shape
        most = max(1, self._engine.limits.max_tokens // rows)
        chunk = max(1, most // _ALIGNMENT * _ALIGNMENT) if most >= _ALIGNMENT else most
        for begin in range(0, tokens, chunk):
            found = self._step(ids[:, begin : begin + chunk], begin + chunk >= tokens)
        return np.array(found, np.int64)[:, None]

    def _step(self, ids: np.ndarray, wants_logits: bool) -> list[int | None]:
        inputs = self._rows.inputs(ids, self._length, wants_logits=wants_logits)
        self._length += ids.shape[1]
        started = time.perf_counter()
        result = self._engine.launch(inputs)
        if not self._engine.runs_ahead:
            self.engine_seconds += time.perf_counter() - started
        tokens = result.best_tokens()
        if self._engine.runs_ahead:
            self.engine_seconds += time.perf_counter() - started
        if None in tokens:
            raise EngineError("expected finite logits, found others: verify the artifact, or use a wider type")
        return tokens


def _prefill(engine: PagedEngine, rows: int, tokens: int, progress: Progress) -> float:
    """Seconds from prompts of random tokens to their first tokens."""
    prompts = _prompts(engine, rows, tokens)
    started = time.perf_counter()
    _Rows(engine, rows, tokens).feed(prompts)
    elapsed = time.perf_counter() - started
    progress.advance()
    return elapsed


def _decode(engine: PagedEngine, rows: int, context: int, tokens: int, progress: Progress) -> list[tuple[float, float]]:
    """Seconds of each decode step after ``context`` tokens: in all, and inside the engine."""
    batch = _Rows(engine, rows, context + tokens)
    last = batch.feed(_prompts(engine, rows, context))
    times = []
    for _ in range(tokens):
        before = batch.engine_seconds
        started = time.perf_counter()
        last = batch.feed(last)
        times.append((time.perf_counter() - started, batch.engine_seconds - before))
    progress.advance()
    return times


def _prompts(engine: PagedEngine, rows: int, tokens: int) -> np.ndarray:
    """Random token ids [rows, tokens], the same in every run."""
    return np.random.default_rng(0).integers(0, engine.config.vocab_size, (rows, tokens))


def _check(
    engine: PagedEngine,
    prompt_tokens: Sequence[int],
    new_tokens: Sequence[int],
    context_tokens: int,
    rows: int,
    repetitions: int,
    warmup: int,
) -> None:
    longest = max([*prompt_tokens, *(context_tokens + count for count in new_tokens)], default=1)
    for name, value, least, most in (
        ("prompt_tokens", min(prompt_tokens, default=1), 1, None),
        ("new_tokens", min(new_tokens, default=1), 1, None),
        ("context_tokens", context_tokens, 1, None),
        ("the longest run", longest, 1, engine.config.max_seq_len),
        ("rows", rows, 1, engine.limits.max_rows),
        ("repetitions", repetitions, 1, None),
        ("warmup", warmup, 0, None),
    ):
        if value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise RequestError(f"{name}: expected {limit}, found {value}")
