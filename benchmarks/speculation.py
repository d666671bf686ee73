"""Prompt lookup on the CPU: decoding of text that repeats and of text that does not, with draft tokens and without.

Prompts are passages of a text, once each. Of their answers, that counts as repeating of which lookup predicts most
tokens, and that as not repeating of which it predicts fewest; the shares are in the results. One request at a time, and
several at once whose answers repeat most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT, HELD_OUT_TEXT, exported, scratch_folder
from benchmarks.measure import Spread, take_turns, timed
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationMetrics, SpeculationSettings
from hybridge.runtime.speculation.ngram_index import NgramIndex

LEAST_RATIOS = {"repeats": 1.5, "does not repeat": 0.97}
Prompts = list[list[int]]


@dataclass(frozen=True)
class SpeculationBenchmarkSettings:
    """``new_tokens`` after a ``passage`` of a text, repeated until it has ``prompt`` tokens.

    tokens: draft tokens. passages: prompts to choose from. batches: requests at once, each with a passage of its own.
    """

    tokens: int = 7
    mode: str = "auto"
    passage: int = 24
    passages: int = 33
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
        shares = _by_share(plain, settings, sampling)
        ordered = [prompt for _, prompt in shares]
        prompts = {"repeats": ordered[:1], "does not repeat": ordered[-1:]}
        batches = {str(count): ordered[:count] for count in settings.batches}
        differing = sum(
            _answers(plain, each, sampling) != _answers(drafting, each, sampling)
            for each in (*prompts.values(), *batches.values())
        )
        gates = require(Gate("answers that differ from those without draft tokens", float(differing), 0.0))

        def compared(prompts: Prompts) -> dict[str, Any]:
            return _compared(plain, drafting, prompts, sampling, settings.repeats)

        results: dict[str, Any] = {name: compared(each) for name, each in prompts.items()}
        results["repeats"]["share_predicted"] = shares[0][0]
        results["does not repeat"]["share_predicted"] = shares[-1][0]
        metrics = _metrics(drafting)
        results["state_bytes_per_draft_token"] = metrics.state_bytes
        results["rows_by_draft_tokens"] = dict(sorted(metrics.chosen.items()))
        results["batches"] = {count: compared(each) for count, each in batches.items()}
    title = "decoding with prompt lookup over decoding without, text that {}"
    targets = [
        Target(title.format(name), results[name]["ratio"].median, "at least", least, "x")
        for name, least in LEAST_RATIOS.items()
    ]
    return Report(gates, results, tuple(targets))


def _opened(folder: Path, settings: SpeculationBenchmarkSettings, speculation: SpeculationSettings | None) -> LLM:
    length, rows = settings.prompt + settings.new_tokens, max(1, *settings.batches)
    if not folder.exists():
        exported(DEMO_CHECKPOINT, folder, layout="paged", max_batch_size=rows, max_seq_len=length)
    return LLM(folder, threads=settings.threads, serving=ServingSettings(speculation=speculation))


def _by_share(
    llm: LLM, settings: SpeculationBenchmarkSettings, sampling: SamplingParams
) -> list[tuple[float, list[int]]]:
    """The prompts, each with the share of its answer's tokens that lookup predicts, in descending order of that."""
    assert llm.tokenizer is not None, "the checkpoint that ships has a tokenizer"
    text, size = llm.tokenizer.encode(HELD_OUT_TEXT.read_text(encoding="utf-8")), settings.passage
    passages = [text[start : start + size] for start in range(0, min(len(text), settings.passages * size), size)]
    prompts = [(list(each) * -(-settings.prompt // size))[: settings.prompt] for each in passages if len(each) == size]
    answers = _answers(llm, prompts, sampling)
    shares = [_predicted(prompt, answer, settings.tokens) for prompt, answer in zip(prompts, answers, strict=True)]
    return sorted(zip(shares, prompts, strict=True), reverse=True)


def _predicted(prompt: Sequence[int], answer: Sequence[int], most: int) -> float:
    """The share of ``answer`` that need no step of their own, with ``most`` draft tokens in each step."""
    defaults = SpeculationSettings()
    index, known, steps = NgramIndex(defaults.shortest, defaults.longest), [*prompt, answer[0]], 1
    text = [*prompt, *answer]
    while len(known) < len(text):
        drafted = index.propose(known, min(most, len(text) - len(known) - 1))
        follows = zip(drafted, text[len(known) :], strict=False)
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], follows))
        known += text[len(known) : len(known) + accepted + 1]
        steps += 1
    return 1 - steps / len(answer)


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
