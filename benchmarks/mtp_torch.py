"""What proposals of a checkpoint's own head cost on a GPU: a 2.65 B hybrid model and a head, random, in bfloat16.

Random heads are right by chance alone, so that no gain is measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.agreement import random_prompt
from benchmarks.command import run_in_folder
from benchmarks.measure import Spread
from benchmarks.paged_runs import paged_logits
from benchmarks.random_checkpoint import NemotronHShape
from benchmarks.report import Gate, Report
from benchmarks.serving_torch import linked_artifact
from benchmarks.torch_engine import LOGITS_TOLERANCE, SHAPE
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import Proposal, SpeculationSettings, Wanted

NAME, REPEATS = "mtp_torch", 5
WITH_HEAD = replace(SHAPE, mtp_pattern="*-")


@dataclass(frozen=True)
class MtpTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens`` in each of ``rows`` sequences at a time, with each number of
    ``candidates``. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact, None for one that goes
    at the end.
    """

    device: str = "cuda"
    work: str | None = None
    candidates: tuple[int, ...] = (1, 2, 4)
    rows: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    new_tokens: int = 128
    repeats: int = REPEATS
    shape: NemotronHShape = WITH_HEAD


def run(settings: MtpTorchSettings) -> Report:
    """Decode with proposals and without; what was accepted has to be what the model itself prefers."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        folder = prepared(Path(settings.work or name), settings)
        engine = TorchPagedEngine(folder, device=settings.device)
        try:
            runs = _Runs(folder, engine, settings)
            plain = {str(rows): runs.plain(rows) for rows in settings.rows}
            results = {str(rows): {"plain": plain[str(rows)], **runs.proposing(rows)} for rows in settings.rows}
            gate = runs.text_gate()
        finally:
            engine.close()
    values = {key: value for key, value in asdict(settings).items() if key != "work"}
    return Report(NAME, values, (gate,), {"rows": results})


def prepared(work: Path, settings: MtpTorchSettings) -> Path:
    """The artifact in the folder ``work``, made where it is missing."""
    from hybridge.exporter.options import ExportOptions

    most, rows = max(settings.candidates), max(settings.rows)
    longest = settings.prompt_tokens + settings.new_tokens + most
    options = ExportOptions(
        layout="paged", speculative_tokens=most, max_batch_size=rows, max_seq_len=longest, scan=False
    )
    return linked_artifact(work, "artifact-mtp", settings.shape, options)


class TimedDrafter(MtpDrafter):
    """Remembers the seconds of each proposal."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.times: list[float] = []

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        began = time.perf_counter()
        found = super().propose(wanted)
        self.times.append(time.perf_counter() - began)
        return found


class _Runs:
    """Whole answers to as many prompts as there are rows."""

    def __init__(self, folder: Path, engine: TorchPagedEngine, settings: MtpTorchSettings) -> None:
        self._folder, self._engine, self._settings = folder, engine, settings
        self._sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
        self._first: tuple[list[int], list[int]] = [], []

    def plain(self, rows: int) -> dict[str, Any]:
        """Microseconds of a step and tokens per second, without candidates; nobody asks for hidden states yet."""
        return self._decoded(self._llm(rows, None), rows, None)

    def proposing(self, rows: int) -> dict[str, Any]:
        """The same, and microseconds of a proposal, with each number of candidates."""
        found = {}
        for tokens in self._settings.candidates:
            longest = self._engine.config.max_seq_len - tokens
            head = open_mtp_head(self._folder, self._engine)
            drafter = TimedDrafter(head, self._engine, rows, longest, tokens)
            try:
                llm = self._llm(rows, SpeculationSettings(tokens, drafter, adaptive=False))
                found[str(tokens)] = self._decoded(llm, rows, drafter)
            finally:
                drafter.close()
        return found

    def text_gate(self) -> Gate:
        """By how much plain decoding prefers another token to one that was accepted, relative to its logits."""
        prompt, text = self._first
        logits = paged_logits(self._engine, np.array(prompt + text), len(prompt), 1)
        gaps = [float((row.max() - row[token]) / np.abs(row).max()) for row, token in zip(logits, text, strict=False)]
        checks = "how much less likely than its own a token with candidates is to plain decoding, of the largest logit"
        return Gate(checks, max(gaps), LOGITS_TOLERANCE)

    def _llm(self, rows: int, speculation: SpeculationSettings | None) -> LLM:
        serving = ServingSettings(prefix_cache="off", speculation=speculation, max_rows=rows)
        return LLM(self._folder, self._engine, serving=serving)

    def _decoded(self, llm: LLM, rows: int, drafter: TimedDrafter | None) -> dict[str, Any]:
        vocab, length = self._engine.config.vocab_size, self._settings.prompt_tokens
        prompts = [random_prompt(vocab, length, seed=row).tolist() for row in range(rows)]
        rates, proposals, steps = [], [], []
        for repeat in range(-2, self._settings.repeats):
            before, began = llm.loop.steps, 0 if drafter is None else len(drafter.times)
            answers = llm.generate(prompts, self._sampling)
            last = max(answer.timings.last_token for answer in answers)
            seconds = last - max(answer.timings.first_token for answer in answers)
            self._first = prompts[0], list(answers[0].token_ids)
            if repeat < 0:
                continue
            rates.append(len(prompts) * (self._settings.new_tokens - 1) / seconds)
            steps.append(seconds / (llm.loop.steps - before - 1) * 1e6)
            if drafter is not None:
                proposals.append(median(drafter.times[began + 1 :]) * 1e6)
        result: dict[str, Any] = {
            "tokens_per_second": Spread.of(rates).to_json(),
            "step_us": Spread.of(steps).to_json(),
        }
        metrics = llm.loop.speculation
        if metrics is not None:
            result |= {"proposal_us": Spread.of(proposals).to_json(), "acceptance": metrics.acceptance}
        return result


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    return run_in_folder(
        __doc__ or "", lambda repeats, work: run(MtpTorchSettings(work=work, repeats=repeats)), REPEATS
    )


if __name__ == "__main__":
    sys.exit(main())
