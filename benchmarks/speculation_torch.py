"""Speculative decoding on a GPU: a 2.65 B hybrid model in bfloat16, and draft tokens that are right by chance.

With a drafter that knows the answer and is right with a given probability, and with a random prediction head, which is
right by chance alone, so that only its cost is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import device_name
from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.paged_runs import allocate, candidate_logits, paged_logits, step_inputs, text_gate
from benchmarks.random_checkpoint import GPU_SHAPE, NemotronHShape
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines.held_modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings

SHAPE_WITH_HEAD = replace(GPU_SHAPE, mtp_pattern="*-")
LEAST_RATIO, MOST_STEP_RATIO, MOST_COMMIT_SHARE, MOST_STATE_SHARE = 2.0, 1.25, 0.05, 0.03


@dataclass(frozen=True)
class SpeculationTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens``, with ``tokens`` draft tokens.

    acceptances: probabilities of a draft token to be right; the first, that of the target, also with ``tokens`` in
    every step and in every rollback mode. rows: of the ``steps`` steps that are timed alone. passes: of the search for
    a text that the model itself gives. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact.
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
    repeats: int = 5
    shape: NemotronHShape = GPU_SHAPE


def run(settings: SpeculationTorchSettings) -> Report:
    """Compare steps with draft tokens with steps of one token, then measure."""
    with work_folder(settings.work) as work:
        longest = settings.prompt_tokens + settings.new_tokens + settings.tokens
        folder = prepared(work, "artifact-candidates", settings.shape, settings.tokens, max(settings.rows), longest)
        with closing(TorchPagedEngine(folder, device=settings.device)) as engine:
            gates = require(_logits_gate(engine, settings), _advance_gate(engine, settings))
            runs, steps = _Runs(folder, engine, settings), _StepTimes(engine, settings)
            results = {
                "steps": {str(rows): steps.of_draft_tokens(rows) for rows in settings.rows},
                "replay_steps": {str(rows): steps.of_replay(rows) for rows in settings.rows},
                **runs.measured(),
                "device": device_name(engine.device),
            }
            gates = require(*gates, runs.text_gate())
    chance, k = settings.acceptances[0], settings.tokens
    ratio = results["acceptance"][str(chance)]["fixed"]["ratio"].median
    step, share = results["steps"]["1"]["ratio"].median, results["replay_steps"]["1"]["share"].median
    state_share = results["state_bytes_per_draft_token"] / results["state_bytes_of_a_snapshot"]
    decoding = f"decoding with {k} draft tokens of which {chance:.0%} are right over plain"
    positions = f"a step of {1 + k} positions over a step of one token, batch 1"
    targets = (
        Target(decoding, ratio, "at least", LEAST_RATIO, "x"),
        Target(positions, step, "at most", MOST_STEP_RATIO, "x"),
        Target("advancing states, share of a step with draft tokens, batch 1", share, "at most", MOST_COMMIT_SHARE, ""),
        Target("stored inputs of a draft token, share of a state", state_share, "at most", MOST_STATE_SHARE, ""),
    )
    return Report(gates, results, targets)


def prepared(work: Path, name: str, shape: NemotronHShape, tokens: int, rows: int, longest: int) -> Path:
    """The paged artifact ``name`` in the folder ``work``."""
    limits = {"max_batch_size": rows, "max_seq_len": longest}
    return linked_artifact(work, name, shape, layout="paged", speculative_tokens=tokens, **limits)


def _logits_gate(engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> Gate:
    """Logits of draft tokens in steps of 1, 2, ... of them against those of one token after the other."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(engine.config.vocab_size, tokens + steps, seed=1)
    expected = paged_logits(engine, sequence, tokens, 1)
    checks = f"logits of {steps} draft tokens after {tokens} tokens against those of one token a step"
    return error_gate(checks, candidate_logits(engine, sequence, tokens), expected, BFLOAT16_TOLERANCE)


def _advance_gate(engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> Gate:
    """The states of rows that were deferred and advanced against those of the same tokens without draft tokens."""
    rows, most, past = max(settings.rows), 1 + settings.tokens, settings.prompt_tokens
    engine.prepare_held(rows, most, REPLAY)
    inputs, right = _deferred_step(engine, rows, most, past), 1 + np.arange(rows) % most
    gates = []
    for _ in range(4):  # directly, recorded, and twice as it was recorded
        engine.zero_slots(range(rows))
        engine.launch(inputs).best_tokens()
        engine.advance(right.astype(np.int32))
        found = _states(engine, rows)
        engine.zero_slots(range(rows))
        for row in range(rows):
            ids = _counted_ids(rows, most)[row : row + 1, : right[row]]
            engine.launch(step_inputs(engine, ids, past, past + most, first_row=row)).best_tokens()
        checks = f"states of {rows} rows that were deferred and advanced against those of steps of the right tokens"
        gates.append(error_gate(checks, found, _states(engine, rows), BFLOAT16_TOLERANCE))
    return max(gates, key=lambda gate: gate.value)


def _deferred_step(engine: TorchPagedEngine, rows: int, tokens: int, past: int) -> PackedInputs:
    """A step of ``tokens`` tokens a row after ``past`` that leaves the recurrent states as they are, in new pools."""
    allocate(engine, rows, past + tokens)
    engine.fill_pools(0.0)
    inputs = step_inputs(engine, _counted_ids(rows, tokens), past, past + tokens)
    return replace(inputs, held=np.ones(rows, bool))


def _counted_ids(rows: int, tokens: int) -> np.ndarray:
    """Token ids 1, 2, ... [rows, tokens]."""
    return np.arange(1, rows * tokens + 1).reshape(rows, tokens)


def _states(engine: TorchPagedEngine, rows: int) -> list[np.ndarray]:
    arrays = engine.arrays_from_copy(engine.swap_out([], list(range(rows))))
    return [arrays[spec.name].astype(np.float32) for spec in engine.config.bindings.states if not spec.grows]


class _StepTimes:
    """Times of steps alone, in microseconds."""

    def __init__(self, engine: TorchPagedEngine, settings: SpeculationTorchSettings) -> None:
        self._engine, self._settings = engine, settings
        self._past, self._most = settings.prompt_tokens, 1 + settings.tokens

    def of_draft_tokens(self, rows: int) -> dict[str, Any]:
        """A step of one token a row, of two, and of one with all draft tokens."""
        engine, most, total = self._engine, self._most, self._past + self._most
        allocate(engine, rows, total, most)
        engine.fill_pools(0.0)

        def step(tokens: int) -> Callable[[], float]:
            slots = 0 if tokens == 1 else most
            inputs = step_inputs(engine, _counted_ids(rows, tokens), self._past, total, slots=slots)
            return self._median(lambda: seconds(lambda: engine.launch(inputs).best_tokens()))

        times = take_turns({str(tokens): step(tokens) for tokens in sorted({1, 2, most})}, self._settings.repeats)
        return {"us": spreads(times), "ratio": Spread.of_ratios(times[str(most)], times["1"])}

    def of_replay(self, rows: int) -> dict[str, Any]:
        """A check of all draft tokens, and with the states advanced by three of five of its tokens.

        One after the other, as in a serving loop: only the next step waits for an advance. share: of both together that
        the advance takes. wall: from its call until the device is idle.
        """
        engine, most = self._engine, self._most
        engine.prepare_held(rows, most, REPLAY)
        inputs = _deferred_step(engine, rows, most, self._past)
        right = np.full(rows, max(1, 3 * most // 5), np.int32)

        def check() -> None:
            engine.launch(inputs).best_tokens()

        def both() -> None:
            check()
            engine.advance(right)

        def advance() -> None:
            engine.advance(right)
            engine.device.synchronize()

        def wall() -> float:
            check()
            return seconds(advance)

        ways = {
            "check": self._median(partial(seconds, check)),
            "check and advance": self._median(partial(seconds, both)),
            "advance, wall": self._median(wall),
        }
        times = take_turns(ways, self._settings.repeats)
        shares = [1 - one / two for one, two in zip(times["check"], times["check and advance"], strict=True)]
        return {"us": spreads(times), "share": Spread.of(shares)}

    def _median(self, once: Callable[[], float]) -> Callable[[], float]:
        def call() -> float:
            for _ in range(3):
                once()
            return 1e6 * float(np.median([once() for _ in range(self._settings.steps)]))

        return call


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
            "state_bytes_per_draft_token": self._engine.held_token_bytes,
            "state_bytes_of_a_snapshot": self._engine.slot_bytes,
            "modes": dict(self._engine.held_modes),
        }

    def text_gate(self) -> Gate:
        """The last answer with draft tokens against plain decoding."""
        return text_gate(self._engine, self._prompt, self._text)

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
            "tokens_per_second": {"plain": Spread.of(plain_rates), "candidates": Spread.of(rates)},
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


@dataclass(frozen=True)
class MtpTorchSettings:
    """``new_tokens`` after a prompt of ``prompt_tokens`` in each of ``rows`` sequences at a time, with each number of
    draft tokens in ``candidates``. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact."""

    device: str = "cuda"
    work: str | None = None
    candidates: tuple[int, ...] = (1, 2, 4)
    rows: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    new_tokens: int = 128
    repeats: int = 5
    shape: NemotronHShape = SHAPE_WITH_HEAD


def run_mtp(settings: MtpTorchSettings) -> Report:
    """Decode with draft tokens and without; plain decoding has to prefer each accepted token too."""
    with work_folder(settings.work) as work:
        most = max(settings.candidates)
        longest = settings.prompt_tokens + settings.new_tokens + most
        folder = prepared(work, "artifact-mtp", settings.shape, most, max(settings.rows), longest)
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
        for tokens in self._settings.candidates:
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
