"""Speculative decoding on a GPU with a random prediction head: right by chance alone, so that its cost is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.agreement import random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import device_name
from benchmarks.measure import Spread
from benchmarks.paged_runs import text_gate
from benchmarks.random_checkpoint import GPU_SHAPE, NemotronHShape
from benchmarks.runner import Report, require
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings

SHAPE_WITH_HEAD = replace(GPU_SHAPE, mtp_pattern="*-")


@dataclass(frozen=True)
class MtpTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens`` in each of ``rows`` sequences at a time, with each number of
    draft tokens in ``tokens``. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact."""

    device: str = "cuda"
    work: str | None = None
    tokens: tuple[int, ...] = (1, 2, 4)
    rows: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    new_tokens: int = 128
    repeats: int = 5
    shape: NemotronHShape = SHAPE_WITH_HEAD


def run(settings: MtpTorchSettings) -> Report:
    """Decode with draft tokens and without; plain decoding has to prefer each accepted token too."""
    with work_folder(settings.work) as work:
        most = max(settings.tokens)
        limits = {
            "max_batch_size": max(settings.rows),
            "max_seq_len": settings.prompt_tokens + settings.new_tokens + most,
        }
        options = {"layout": "paged", **limits}
        folder = linked_artifact(work, "artifact-head", settings.shape, **options)
        with closing(TorchPagedEngine(folder, device=settings.device)) as engine:
            runs = _MtpRuns(folder, engine, settings)
            # Without draft tokens first, while no hidden states are stored.
            plain = {str(rows): runs.plain(rows) for rows in settings.rows}
            results = {str(rows): {"plain": plain[str(rows)], **runs.drafting(rows)} for rows in settings.rows}
            gates = require(text_gate(engine, *runs.first))
            return Report(gates, {"rows": results, "device": device_name(engine.device)})


class TimedDrafter(MtpDrafter):
    """Records the seconds of each proposal."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.times: list[float] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        started = time.perf_counter()
        found = super().propose(requests)
        self.times.append(time.perf_counter() - started)
        return found


class _MtpRuns:
    """Whole answers to as many prompts as there are rows. first: the last prompt and answer of row 0."""

    def __init__(self, folder: Path, engine: TorchPagedEngine, settings: MtpTorchSettings) -> None:
        self._folder, self._engine, self._settings = folder, engine, settings
        self._sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
        self.first: tuple[list[int], list[int]] = [], []

    def plain(self, rows: int) -> dict[str, Any]:
        """Microseconds of a step and tokens per second, without draft tokens."""
        return self._decoded(self._llm(rows, None), rows, None)

    def drafting(self, rows: int) -> dict[str, Any]:
        """The same and microseconds of a proposal, with each number of draft tokens."""
        found = {}
        for tokens in self._settings.tokens:
            longest = self._engine.config.max_seq_len - tokens
            head = open_mtp_head(self._folder, self._engine)
            with closing(TimedDrafter(head, self._engine, rows, longest, tokens)) as drafter:
                llm = self._llm(rows, SpeculationSettings(tokens, drafter, adaptive=False))
                found[str(tokens)] = self._decoded(llm, rows, drafter)
        return found

    def _llm(self, rows: int, speculation: SpeculationSettings | None) -> LLM:
        serving = ServingSettings(prefix_cache="off", speculation=speculation, max_rows=rows)
        return LLM(self._folder, self._engine, serving=serving)

    def _decoded(self, llm: LLM, rows: int, drafter: TimedDrafter | None) -> dict[str, Any]:
        vocab, length = self._engine.config.vocab_size, self._settings.prompt_tokens
        prompts = [random_prompt(vocab, length, seed=row).tolist() for row in range(rows)]
        rates, proposals, steps = [], [], []
        for repeat in range(-2, self._settings.repeats):
            before, proposed = llm.loop.steps, 0 if drafter is None else len(drafter.times)
            answers = llm.generate(prompts, self._sampling)
            last = max(answer.timings.last_token for answer in answers)
            wall = last - max(answer.timings.first_token for answer in answers)
            self.first = prompts[0], list(answers[0].token_ids)
            if repeat < 0:
                continue
            rates.append(len(prompts) * (self._settings.new_tokens - 1) / wall)
            steps.append(1e6 * wall / (llm.loop.steps - before - 1))
            if drafter is not None:
                proposals.append(1e6 * median(drafter.times[proposed + 1 :]))
        result: dict[str, Any] = {"tokens_per_second": Spread.of(rates), "step_us": Spread.of(steps)}
        metrics = llm.loop.speculation
        if metrics is not None:
            result |= {"proposal_us": Spread.of(proposals), "acceptance": metrics.acceptance}
        return result
