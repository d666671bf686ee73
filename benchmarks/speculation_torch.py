"""Speculative decoding on a GPU: a 2.65 B hybrid model in bfloat16, and draft tokens that are right by chance.

The drafter knows the answer and is right with a given probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import device_name
from benchmarks.measure import Spread
from benchmarks.paged_runs import paged_logits
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings

LEAST_RATIO, MOST_STATE_SHARE = 2.0, 0.03


@dataclass(frozen=True)
class SpeculationTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens``, with ``tokens`` draft tokens.

    acceptances: probabilities of a draft token to be right; the first, that of the target, also with ``tokens`` in
    every step and in every rollback mode. passes: of the search for a text that the model itself gives. device: "cuda"
    or "cpu". work: a folder that keeps checkpoint and artifact.
    """

    device: str = "cuda"
    work: str | None = None
    tokens: int = 4
    acceptances: tuple[float, ...] = (0.7, 0.5, 0.9)
    prompt_tokens: int = 512
    new_tokens: int = 256
    passes: int = 12
    repeats: int = 5
    model: Config = field(default_factory=lambda: GPU_MODEL)


def run(settings: SpeculationTorchSettings) -> Report:
    """Decode with draft tokens and without; plain decoding has to prefer each accepted token too."""
    with work_folder(settings.work) as work:
        longest = settings.prompt_tokens + settings.new_tokens + settings.tokens
        options = {"layout": "paged", "max_batch_size": 1, "max_seq_len": longest}
        folder = linked_artifact(work, "artifact-paged", settings.model, **options)
        with closing(TorchPagedEngine(folder, device=settings.device)) as engine:
            runs = _Runs(folder, engine, settings)
            results = {**runs.measured(), "device": device_name(engine.device)}
            gates = require(runs.text_gate())
    chance, k = settings.acceptances[0], settings.tokens
    ratio = results["acceptance"][str(chance)]["fixed"]["ratio"].median
    state_share = results["state_bytes_per_draft_token"] / results["state_bytes_of_a_snapshot"]
    decoding = f"decoding with {k} draft tokens of which {chance:.0%} are right over plain"
    targets = (
        Target(decoding, ratio, "at least", LEAST_RATIO, "x"),
        Target("stored inputs of a draft token, share of a state", state_share, "at most", MOST_STATE_SHARE, ""),
    )
    return Report(gates, results, targets)


class OracleDrafter:
    """Knows the answer: every draft token is right with probability ``acceptance``, independently of the others.

    text: prompt and answer. Which draft tokens are right depends on ``seed`` and the place in the text alone.
    """

    def __init__(self, text: Sequence[int], vocab: int, acceptance: float, seed: int = 0) -> None:
        self.text, self._vocab = list(text), vocab
        self._right = np.random.default_rng(seed).random((len(self.text) + 1, 16)) < acceptance

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._proposal(len(each.tokens), each.most) for each in requests]

    def forget(self, sequence: int) -> None:
        """Nothing is stored for a sequence."""

    def _proposal(self, size: int, most: int) -> Proposal:
        tokens = self.text[size : size + most]
        rights = self._right[min(size, len(self.text))]
        return Proposal(tuple(t if right else (t + 1) % self._vocab for t, right in zip(tokens, rights, strict=False)))


class _Runs:
    """Whole answers to one prompt."""

    def __init__(self, folder: Path, engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> None:
        self._folder, self._engine, self._settings = folder, engine, settings
        self._prompt = random_prompt(engine.config.vocab_size, settings.prompt_tokens, seed=2).tolist()
        self._sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
        self._text: list[int] = []

    def measured(self) -> dict[str, Any]:
        """Tokens per second without draft tokens and with, for every probability."""
        acceptance = {}
        for index, chance in enumerate(self._settings.acceptances):
            ways = {"adaptive": self._compared(chance, adaptive=True)}
            if index == 0:
                ways["fixed snapshot"] = self._compared(chance, adaptive=False, mode=SNAPSHOT)
                ways["fixed mixed"] = self._compared(chance, adaptive=False, mode={"causal_conv1d": SNAPSHOT})
                ways["fixed"] = self._compared(chance, adaptive=False, mode=REPLAY)
            acceptance[str(chance)] = ways
        return {
            "acceptance": acceptance,
            "state_bytes_per_draft_token": self._engine.rollback_token_bytes,
            "state_bytes_of_a_snapshot": self._engine.slot_bytes,
            "modes": dict(self._engine.rollback_modes),
        }

    def text_gate(self) -> Gate:
        """By how much plain decoding prefers another token to one of the last answer, relative to its logits."""
        logits = paged_logits(self._engine, np.array([*self._prompt, *self._text]), len(self._prompt), 1)
        gaps = [
            float((row.max() - row[token]) / np.abs(row).max()) for row, token in zip(logits, self._text, strict=False)
        ]
        checks = "how much plain decoding prefers its own token to an accepted draft token, share of the largest logit"
        return Gate(checks, max(gaps), BFLOAT16_TOLERANCE)

    def _compared(self, chance: float, adaptive: bool, mode: str | Mapping[str, str] = AUTO) -> dict[str, Any]:
        plain = self._llm(None)
        text = self._prompt + list(plain.generate(self._prompt, self._sampling).token_ids)
        oracle = OracleDrafter(text, self._engine.config.vocab_size, chance)
        plain_rates = self._rates(plain)
        drafting = self._llm(SpeculationSettings(self._settings.tokens, oracle, adaptive=adaptive, mode=mode))
        passes = self._settle(drafting, oracle)
        self._text = oracle.text[len(self._prompt) :]
        metrics = drafting.loop.speculation
        assert metrics is not None, "the settings ask for it"
        before = metrics.rows, metrics.proposed, metrics.accepted, dict(metrics.chosen)
        rates = self._rates(drafting)
        rows, proposed = metrics.rows - before[0], metrics.proposed - before[1]
        accepted = metrics.accepted - before[2]
        chosen = {str(k): n - before[3].get(k, 0) for k, n in sorted(metrics.chosen.items())}
        return {
            "tokens_per_second": {"plain": Spread.of(plain_rates), "draft tokens": Spread.of(rates)},
            "ratio": Spread.of_ratios(rates, plain_rates),
            "acceptance": accepted / max(1, proposed),
            "tokens_per_row": 1 + accepted / rows,
            "mean_chosen": proposed / rows,
            "rows_by_draft_tokens": chosen,
            "passes": passes,
            "state_bytes_per_draft_token": metrics.state_bytes,
        }

    def _llm(self, speculation: SpeculationSettings | None) -> LLM:
        serving = ServingSettings(prefix_cache="off", speculation=speculation, max_rows=1)
        return LLM(self._folder, self._engine, serving=serving)

    def _settle(self, llm: LLM, oracle: OracleDrafter) -> int:
        """Give the oracle the answer that the model generates with its draft tokens; the passes that this took.

        Other rounding may make other tokens the most likely ones.
        """
        for passes in range(1, self._settings.passes + 1):
            found = self._prompt + list(llm.generate(self._prompt, self._sampling).token_ids)
            if found == oracle.text:
                return passes
            oracle.text = found
        return self._settings.passes

    def _rates(self, llm: LLM) -> list[float]:
        """Tokens per second of decoding, after two runs that are not measured."""
        rates = []
        for _ in range(-2, self._settings.repeats):
            rate = llm.generate(self._prompt, self._sampling).timings.decode_tokens_per_second
            assert rate is not None, "more than one token was asked for"
            rates.append(rate)
        return rates[2:]
