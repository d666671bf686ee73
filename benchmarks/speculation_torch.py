"""Speculative decoding on a GPU: a 2.65 B hybrid model in bfloat16, its drafts right with a given probability."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.command import run_in_folder
from benchmarks.measure import Spread
from benchmarks.oracle_drafter import OracleDrafter
from benchmarks.paged_runs import candidate_logits, paged_logits
from benchmarks.random_checkpoint import NemotronHShape
from benchmarks.report import Gate, Report, Target
from benchmarks.serving_torch import linked_artifact
from benchmarks.speculation_steps import StepTimes, held_inputs
from benchmarks.torch_engine import LOGITS_TOLERANCE, SHAPE
from hybridge.runtime.engines.held_modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings

NAME, REPEATS = "speculation_torch", 5
LEAST_RATIO, MOST_STEP_RATIO, MOST_COMMIT_SHARE, MOST_STATE_SHARE = 2.0, 1.25, 0.05, 0.03


@dataclass(frozen=True)
class SpeculationTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens``, with ``tokens`` candidates.

    acceptances: chances of a candidate to be right; the first, that of the target, also with ``tokens`` in every step
    and in every mode. rows: of the steps that are timed alone. passes: of the search for a text that the model itself
    gives. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact, None for one that goes at the
    end.
    """

    device: str = "cuda"
    work: str | None = None
    tokens: int = 4
    acceptances: tuple[float, ...] = (0.7, 0.5, 0.9)
    rows: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    new_tokens: int = 256
    passes: int = 12
    steps: int = 50
    gate_tokens: int = 70
    gate_steps: int = 10
    repeats: int = REPEATS
    shape: NemotronHShape = SHAPE


def run(settings: SpeculationTorchSettings) -> Report:
    """Compare steps with candidates with steps of one token, then measure."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        folder = prepared(Path(settings.work or name), settings)
        engine = TorchPagedEngine(folder, device=settings.device)
        try:
            gates = [_logits_gate(engine, settings), _advance_gate(engine, settings)]
            results: dict[str, Any] = {}
            if all(gate.passed for gate in gates):
                runs = _Runs(folder, engine, settings)
                times = StepTimes(engine, settings.tokens, settings.prompt_tokens, settings.steps, settings.repeats)
                results = {
                    "steps": {str(rows): times.of_candidates(rows) for rows in settings.rows},
                    "replay_steps": {str(rows): times.of_replay(rows) for rows in settings.rows},
                    **runs.measured(),
                }
                gates.append(runs.text_gate())
        finally:
            engine.close()
    values = {key: value for key, value in asdict(settings).items() if key != "work"}
    return Report(NAME, values, tuple(gates), results, _targets(results, settings) if results else ())


def prepared(work: Path, settings: SpeculationTorchSettings) -> Path:
    """The artifact in the folder ``work``, made where it is missing."""
    from hybridge.exporter.options import ExportOptions

    longest = settings.prompt_tokens + settings.new_tokens + settings.tokens
    rows = max(settings.rows)
    options = ExportOptions(
        layout="paged", speculative_tokens=settings.tokens, max_batch_size=rows, max_seq_len=longest, scan=False
    )
    return linked_artifact(work, "artifact-candidates", settings.shape, options)


def _logits_gate(engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> Gate:
    """Logits of candidates in steps of 1, 2, ... of them against those of one token after the other."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(engine.config.vocab_size, tokens + steps, seed=1)
    wanted = paged_logits(engine, sequence, tokens, 1)
    found = candidate_logits(engine, sequence, tokens)
    worst = max(relative_error(*pair) for pair in zip(found, wanted, strict=True))
    checks = f"logits of {steps} candidates after {tokens} tokens against those of one token a step, relative error"
    return Gate(checks, worst, LOGITS_TOLERANCE)


def _advance_gate(engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> Gate:
    """The states of three rows that were held and advanced against those of the same tokens without candidates."""
    rows, most = max(settings.rows), 1 + settings.tokens
    engine.prepare_held(rows, most, REPLAY)
    inputs, right = held_inputs(engine, rows, most, settings.prompt_tokens), 1 + np.arange(rows) % most
    worst = 0.0
    for _ in range(4):  # directly, recorded, and twice as it was recorded
        engine.zero_slots(range(rows))
        engine.launch(inputs).best_tokens()
        engine.advance(right.astype(np.int32))
        found = _states(engine, rows)
        engine.zero_slots(range(rows))
        for row in range(rows):
            engine.launch(_part(inputs, row, int(right[row]))).best_tokens()
        worst = max(worst, *(relative_error(*pair) for pair in zip(found, _states(engine, rows), strict=True)))
    checks = f"states of {rows} rows that were held and advanced against those of steps of the right tokens alone"
    return Gate(checks, worst, LOGITS_TOLERANCE)


def _part(inputs: PackedInputs, row: int, tokens: int) -> PackedInputs:
    """The first ``tokens`` of one row as a step without candidates."""
    begin = int(inputs.query_start_loc[row])
    own, part = slice(row, row + 1), slice(begin, begin + tokens)
    return PackedInputs(
        inputs.input_ids[part],
        inputs.positions[part],
        np.array([0, tokens], np.int32),
        np.array([inputs.positions[begin] + tokens], np.int32),
        inputs.block_table[own],
        inputs.slot_mapping[part],
        inputs.state_indices[own],
        np.array([tokens - 1], np.int32),
    )


def _states(engine: TorchPagedEngine, rows: int) -> list[np.ndarray]:
    arrays = engine.arrays_from_copy(engine.swap_out([], list(range(rows))))
    return [arrays[spec.name].astype(np.float32) for spec in engine.config.bindings.states if not spec.grows]


class _Runs:
    """Whole answers to one prompt."""

    def __init__(self, folder: Path, engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> None:
        self._folder, self._engine, self._settings = folder, engine, settings
        self._prompt = random_prompt(engine.config.vocab_size, settings.prompt_tokens, seed=2).tolist()
        self._sampling = SamplingParams(max_new_tokens=settings.new_tokens, ignore_eos=True)
        self._text: list[int] = []

    def measured(self) -> dict[str, Any]:
        """Tokens per second without candidates and with, for every chance."""
        results: dict[str, Any] = {"acceptance": {}}
        for index, chance in enumerate(self._settings.acceptances):
            ways = {"adaptive": self._compared(chance, adaptive=True)}
            if index == 0:
                ways["fixed snapshot"] = self._compared(chance, adaptive=False, mode=SNAPSHOT)
                ways["fixed mixed"] = self._compared(chance, adaptive=False, mode={"causal_conv1d": SNAPSHOT})
                ways["fixed"] = self._compared(chance, adaptive=False, mode=REPLAY)
            results["acceptance"][str(chance)] = ways
        results["state_bytes_per_candidate"] = self._engine.held_token_bytes
        results["state_bytes_of_a_snapshot"] = self._engine.slot_bytes
        results["modes"] = dict(self._engine.held_modes)
        return results

    def text_gate(self) -> Gate:
        """By how much plain decoding prefers another token to one that was accepted, relative to its logits."""
        sequence = np.array(self._prompt + self._text)
        logits = paged_logits(self._engine, sequence, len(self._prompt), 1)
        gaps = [
            float((row.max() - row[token]) / np.abs(row).max()) for row, token in zip(logits, self._text, strict=False)
        ]
        checks = "how much less likely than its own a token with candidates is to plain decoding, of the largest logit"
        return Gate(checks, max(gaps), LOGITS_TOLERANCE)

    def _compared(self, chance: float, adaptive: bool, mode: str | Mapping[str, str] = AUTO) -> dict[str, Any]:
        plain = self._llm(None)
        text = self._prompt + list(plain.generate(self._prompt, self._sampling).token_ids)
        oracle = OracleDrafter(text, self._engine.config.vocab_size, chance)
        plain_rates = self._rates(plain)
        trying = self._llm(SpeculationSettings(self._settings.tokens, oracle, adaptive=adaptive, mode=mode))
        passes = self._settle(trying, oracle)
        self._text = oracle.text[len(self._prompt) :]
        metrics = trying.loop.speculation
        assert metrics is not None, "the settings ask for it"
        before = metrics.rows, metrics.proposed, metrics.accepted, dict(metrics.chosen)
        rates = self._rates(trying)
        rows, proposed = metrics.rows - before[0], metrics.proposed - before[1]
        accepted = metrics.accepted - before[2]
        chosen = {str(k): n - before[3].get(k, 0) for k, n in sorted(metrics.chosen.items())}
        return {
            "tokens_per_second": {"plain": Spread.of(plain_rates).to_json(), "candidates": Spread.of(rates).to_json()},
            "ratio": Spread.of_ratios(rates, plain_rates).to_json(),
            "acceptance": accepted / max(1, proposed),
            "tokens_per_row": 1 + accepted / rows,
            "mean_chosen": proposed / rows,
            "rows_by_candidates": chosen,
            "passes": passes,
            "state_bytes_per_candidate": metrics.state_bytes,
        }

    def _llm(self, speculation: SpeculationSettings | None) -> LLM:
        serving = ServingSettings(prefix_cache="off", speculation=speculation, max_rows=1)
        return LLM(self._folder, self._engine, serving=serving)

    def _settle(self, llm: LLM, oracle: OracleDrafter) -> int:
        """Let the oracle know the answer that the model gives with its candidates; in how many passes.

        Other rounding may make other tokens the most likely ones.
        """
        for passes in range(1, self._settings.passes + 1):
            found = self._prompt + list(llm.generate(self._prompt, self._sampling).token_ids)
            if found == oracle.text:
                return passes
            oracle.text = found
        return self._settings.passes

    def _rates(self, llm: LLM) -> list[float]:
        rates = []
        for _ in range(-2, self._settings.repeats):
            rate = llm.generate(self._prompt, self._sampling).timings.decode_tokens_per_second
            assert rate is not None, "more than one token was asked for"
            rates.append(rate)
        return rates[2:]


def _targets(results: dict[str, Any], settings: SpeculationTorchSettings) -> tuple[Target, ...]:
    chance, k = settings.acceptances[0], settings.tokens
    ratio = results["acceptance"][str(chance)]["fixed"]["ratio"]["median"]
    step = results["steps"]["1"]["ratio"]["median"]
    return (
        Target(
            f"decoding with {k} candidates of which {chance:.0%} are right over plain",
            ratio,
            "at least",
            LEAST_RATIO,
            "x",
        ),
        Target(f"a step of {1 + k} positions over a step of one token, batch 1", step, "at most", MOST_STEP_RATIO, "x"),
        Target(
            "advancing states, share of a step of candidates, batch 1",
            results["replay_steps"]["1"]["share"]["median"],
            "at most",
            MOST_COMMIT_SHARE,
            "",
        ),
        Target(
            "what a candidate leaves behind, share of a state",
            results["state_bytes_per_candidate"] / results["state_bytes_of_a_snapshot"],
            "at most",
            MOST_STATE_SHARE,
            "",
        ),
    )


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    return run_in_folder(
        __doc__ or "", lambda repeats, work: run(SpeculationTorchSettings(work=work, repeats=repeats)), REPEATS
    )


if __name__ == "__main__":
    sys.exit(main())
