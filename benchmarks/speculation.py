"""Prompt lookup on the CPU: decoding of text that repeats and of text that does not, with candidates and without.

One request at a time, and several at once whose texts repeat.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT
from benchmarks.command import run_command
from benchmarks.measure import Spread, take_turns
from benchmarks.report import Gate, Report, Target
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationMetrics, SpeculationSettings

NAME, REPEATS = "speculation", 5
LEAST_RATIO = 1.5
Prompts = list[list[int]]
HELDOUT = Path(__file__).parents[1] / "examples" / "text" / "heldout.txt"


@dataclass(frozen=True)
class SpeculationBenchmarkSettings:
    """``new_tokens`` after ``prompt`` tokens: a ``passage`` of a text repeated, or as many of its first.

    ``batches``: requests at once, each with a passage of its own.
    """

    tokens: int = 4
    mode: str = "auto"
    passage: int = 24
    prompt: int = 120
    batches: tuple[int, ...] = (4, 8)
    new_tokens: int = 128
    threads: int = 2
    repeats: int = REPEATS


def run(settings: SpeculationBenchmarkSettings) -> Report:
    """Export the checkpoint that ships with and without candidates and continue the same prompts."""
    sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        plain = _opened(Path(name) / "plain", settings, 0)
        trying = _opened(Path(name) / "trying", settings, settings.tokens)
        prompts = _prompts(plain, settings)
        batches = {str(count): _repeating(plain, settings, count) for count in settings.batches}
        differing = sum(
            _answers(plain, each, sampling) != _answers(trying, each, sampling)
            for each in (*prompts.values(), *batches.values())
        )
        gate = Gate("answers that differ from those without candidates", float(differing), 0.0)
        if not gate.passed:
            return Report(NAME, asdict(settings), (gate,))
        results: dict[str, Any] = {
            text: _compared(plain, trying, each, sampling, settings.repeats) for text, each in prompts.items()
        }
        metrics = _metrics(trying)
        results["state_bytes_per_candidate"] = metrics.state_bytes
        results["rows_by_candidates"] = dict(sorted(metrics.chosen.items()))
        results["batches"] = {
            count: _compared(plain, trying, each, sampling, settings.repeats) for count, each in batches.items()
        }
    title = "decoding with prompt lookup over decoding without, text that repeats"
    target = Target(title, results["repeats"]["ratio"]["median"], "at least", LEAST_RATIO, "x")
    return Report(NAME, asdict(settings), (gate,), results, (target,))


def _opened(folder: Path, settings: SpeculationBenchmarkSettings, candidates: int) -> LLM:
    length = settings.prompt + settings.new_tokens
    options = ExportOptions(
        layout="paged",
        max_batch_size=max(1, *settings.batches),
        max_seq_len=length,
        scan=False,
        speculative_tokens=candidates,
    )
    export_checkpoint(DEMO_CHECKPOINT, folder, options)
    speculation = SpeculationSettings(candidates, mode=settings.mode) if candidates else None
    return LLM(folder, threads=settings.threads, serving=ServingSettings(speculation=speculation))


def _prompts(llm: LLM, settings: SpeculationBenchmarkSettings) -> dict[str, Prompts]:
    return {"repeats": _repeating(llm, settings, 1), "does not repeat": [_text(llm, settings)[: settings.prompt]]}


def _repeating(llm: LLM, settings: SpeculationBenchmarkSettings, count: int) -> Prompts:
    """``count`` prompts, each of which repeats the passage behind that of the one before."""
    ids, size = _text(llm, settings), settings.passage
    passages = (ids[start : start + size] for start in range(0, count * size, size))
    return [(passage * -(-settings.prompt // size))[: settings.prompt] for passage in passages]


def _text(llm: LLM, settings: SpeculationBenchmarkSettings) -> list[int]:
    assert llm.tokenizer is not None, "the checkpoint that ships has a tokenizer"
    return list(llm.tokenizer.encode(HELDOUT.read_text(encoding="utf-8")[: 20 * settings.prompt]))


def _answers(llm: LLM, prompts: Prompts, sampling: SamplingParams) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in llm.generate(prompts, sampling)]


def _metrics(llm: LLM) -> SpeculationMetrics:
    metrics = llm.loop.speculation
    assert metrics is not None, "the settings ask for it"
    return metrics


def _compared(plain: LLM, trying: LLM, prompts: Prompts, sampling: SamplingParams, repeats: int) -> dict[str, Any]:
    """All ``prompts`` at once, without candidates and with."""
    metrics, tokens = _metrics(trying), len(prompts) * (sampling.max_new_tokens or 0)
    before = metrics.rows, metrics.proposed, metrics.accepted
    ways = {"plain": _timed(plain, prompts, sampling), "candidates": _timed(trying, prompts, sampling)}
    times = take_turns(ways, repeats)
    return {
        "tokens_per_second": {way: Spread.of(tokens / t for t in values).to_json() for way, values in times.items()},
        "ratio": Spread.of_ratios(times["plain"], times["candidates"]).to_json(),
        **_counted(metrics, before),
    }


def _timed(llm: LLM, prompts: Prompts, sampling: SamplingParams) -> Callable[[], float]:
    """Seconds of the whole call, prompts included."""

    def call() -> float:
        started = time.perf_counter()
        llm.generate(prompts, sampling)
        return time.perf_counter() - started

    return call


def _counted(metrics: SpeculationMetrics, before: tuple[int, int, int]) -> dict[str, float]:
    """Acceptance and tokens of a decoded row since ``before``."""
    rows, proposed, accepted = metrics.rows - before[0], metrics.proposed - before[1], metrics.accepted - before[2]
    return {"acceptance": accepted / proposed if proposed else 0.0, "tokens_per_row": 1 + accepted / rows}


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    description = "speculative decoding with prompt lookup"
    return run_command(description, lambda repeats: run(SpeculationBenchmarkSettings(repeats=repeats)), REPEATS)


if __name__ == "__main__":
    sys.exit(main())
