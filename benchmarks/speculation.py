"""Prompt lookup on the CPU: decoding of text that repeats and of text that does not, with draft tokens and without.

One request at a time, and several at once whose texts repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT, HELD_OUT_TEXT, exported, scratch_folder
from benchmarks.measure import Spread, take_turns, timed
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationMetrics, SpeculationSettings

LEAST_RATIO = 1.5
Prompts = list[list[int]]


@dataclass(frozen=True)
class SpeculationBenchmarkSettings:
    """``new_tokens`` after ``prompt`` tokens: a ``passage`` of a text repeated, or as many of its first.

    tokens: draft tokens. batches: requests at once, each with a passage of its own.
    """

    tokens: int = 4
    mode: str = "auto"
    passage: int = 24
    prompt: int = 120
    batches: tuple[int, ...] = (4, 8)
    new_tokens: int = 128
    threads: int = 2
    repeats: int = 5


def run(settings: SpeculationBenchmarkSettings) -> Report:
    """Continue the same prompts with draft tokens and without."""
    sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
    with scratch_folder() as folder:
        plain = _opened(folder / "paged", settings, None)
        speculation = SpeculationSettings(settings.tokens, mode=settings.mode)
        drafting = _opened(folder / "paged", settings, speculation)
        text = _text(plain, settings)
        prompts = {"repeats": _repeating(text, settings, 1), "does not repeat": [text[: settings.prompt]]}
        batches = {str(count): _repeating(text, settings, count) for count in settings.batches}
        differing = sum(
            _answers(plain, each, sampling) != _answers(drafting, each, sampling)
            for each in (*prompts.values(), *batches.values())
        )
        gates = require(Gate("answers that differ from those without draft tokens", float(differing), 0.0))

        def compared(prompts: Prompts) -> dict[str, Any]:
            return _compared(plain, drafting, prompts, sampling, settings.repeats)

        results: dict[str, Any] = {name: compared(each) for name, each in prompts.items()}
        metrics = _metrics(drafting)
        results["state_bytes_per_draft_token"] = metrics.state_bytes
        results["rows_by_draft_tokens"] = dict(sorted(metrics.chosen.items()))
        results["batches"] = {count: compared(each) for count, each in batches.items()}
    title = "decoding with prompt lookup over decoding without, text that repeats"
    return Report(gates, results, (Target(title, results["repeats"]["ratio"].median, "at least", LEAST_RATIO, "x"),))


def _opened(folder: Path, settings: SpeculationBenchmarkSettings, speculation: SpeculationSettings | None) -> LLM:
    length, rows = settings.prompt + settings.new_tokens, max(1, *settings.batches)
    if not folder.exists():
        exported(DEMO_CHECKPOINT, folder, layout="paged", max_batch_size=rows, max_seq_len=length)
    return LLM(folder, threads=settings.threads, serving=ServingSettings(speculation=speculation))


def _text(llm: LLM, settings: SpeculationBenchmarkSettings) -> list[int]:
    assert llm.tokenizer is not None, "the checkpoint that ships has a tokenizer"
    return list(llm.tokenizer.encode(HELD_OUT_TEXT.read_text(encoding="utf-8")[: 20 * settings.prompt]))


def _repeating(text: list[int], settings: SpeculationBenchmarkSettings, count: int) -> Prompts:
    """``count`` prompts, each of which repeats the passage after that of the one before."""
    size = settings.passage
    passages = (text[start : start + size] for start in range(0, count * size, size))
    return [(passage * -(-settings.prompt // size))[: settings.prompt] for passage in passages]


def _answers(llm: LLM, prompts: Prompts, sampling: SamplingParams) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in llm.generate(prompts, sampling)]


def _metrics(llm: LLM) -> SpeculationMetrics:
    metrics = llm.loop.speculation
    assert metrics is not None, "the settings ask for it"
    return metrics


def _compared(plain: LLM, drafting: LLM, prompts: Prompts, sampling: SamplingParams, repeats: int) -> dict[str, Any]:
    """All ``prompts`` at once, without draft tokens and with; acceptance and tokens of a decoded row."""
    metrics, tokens = _metrics(drafting), len(prompts) * (sampling.max_new_tokens or 0)
    before = metrics.rows, metrics.proposed, metrics.accepted
    ways = {"plain": plain, "draft tokens": drafting}
    times = take_turns({way: timed(partial(llm.generate, prompts, sampling)) for way, llm in ways.items()}, repeats)
    rows, proposed, accepted = metrics.rows - before[0], metrics.proposed - before[1], metrics.accepted - before[2]
    return {
        "tokens_per_second": {way: Spread.of(tokens / t for t in values) for way, values in times.items()},
        "ratio": Spread.of_ratios(times["plain"], times["draft tokens"]),
        "acceptance": accepted / proposed if proposed else 0.0,
        "tokens_per_row": 1 + accepted / rows,
    }
