"""Tokens per second on the CPU against transformers: decoding, prefill, bandwidth and the cost of our own Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.agreement import logits_gate, random_prompt, tokens_gate
from benchmarks.artifacts import (
    DELTA_CHECKPOINT,
    DEMO_CHECKPOINT,
    exported,
    scratch_folder,
    touched_bytes_per_token,
)
from benchmarks.machine import ReadBandwidth
from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import DECODE_MODEL, Config, write_random_checkpoint
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams

DEMO, DELTA, RANDOM = "demo", "demo Qwen3-Next", "random 150M"
MOST_OVERHEAD_US = 150.0


@dataclass(frozen=True)
class Goals:
    """Aims for one model as ratios of our speed to the peer's."""

    decode: float
    prefill: float


GOALS = {DEMO: Goals(4.0, 1.0), DELTA: Goals(3.0, 1.0), RANDOM: Goals(1.2, 1 / 1.2)}


@dataclass(frozen=True)
class DecodeSettings:
    """Prompt of ``prompt_tokens``, then ``new_tokens`` greedy ones (by model); ``prefill_tokens`` apart from that."""

    new_tokens: Mapping[str, int] = field(default_factory=lambda: {DEMO: 256, DELTA: 256, RANDOM: 64})
    prompt_tokens: int = 16
    prefill_tokens: int = 512
    threads: int = 2
    repeats: int = 7
    model: Config = field(default_factory=lambda: DECODE_MODEL)
    bandwidth_bytes: int = 512 * 2**20


def run(settings: DecodeSettings) -> Report:
    """Measure the checkpoints that ship and a random one; all are exported here."""
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    bandwidth = ReadBandwidth(settings.threads, settings.bandwidth_bytes)
    with scratch_folder() as folder:
        random = folder / "checkpoint"
        write_random_checkpoint(random, settings.model)
        for model, checkpoint in ((DEMO, DEMO_CHECKPOINT), (DELTA, DELTA_CHECKPOINT), (RANDOM, random)):
            artifact = exported(checkpoint, folder / model.replace(" ", "-"), max_batch_size=1)
            peer = Peer(checkpoint, settings.threads)
            engine = create_dense_engine(artifact, "onnxruntime", EngineOptions(settings.threads))
            with LLM(artifact, engine) as llm:
                contest = _Contest(model, llm, engine, peer, settings, bandwidth)
                gates += contest.gates()
                require(*gates)
                results[model] = contest.measure(touched_bytes_per_token(checkpoint, llm.config))
            del peer
    targets = (target for model, result in results.items() for target in _targets(model, result))
    return Report(tuple(gates), results, tuple(targets))


class _Contest:
    """One model: ours (through LLM, and its engine alone) and the peer's, on the same prompts."""

    def __init__(
        self,
        model: str,
        llm: LLM,
        engine: DenseEngine,
        peer: Peer,
        settings: DecodeSettings,
        bandwidth: Callable[[], float],
    ) -> None:
        self._model, self._llm, self._engine, self._peer = model, llm, engine, peer
        self._settings, self._bandwidth = settings, bandwidth
        self._new_tokens = settings.new_tokens[model]
        vocabulary = llm.config.vocab_size
        self._prompt = random_prompt(vocabulary, settings.prompt_tokens)
        self._long_prompt = random_prompt(vocabulary, settings.prefill_tokens)

    def gates(self) -> list[Gate]:
        """Logits, then greedy tokens."""
        expected = self._peer.generate(self._prompt, self._new_tokens)
        return [
            logits_gate(self._model, self._engine, self._peer, self._settings.prefill_tokens, 4),
            tokens_gate(f"{self._model}, LLM.generate", self._generate(), expected),
        ]

    def measure(self, touched_bytes: float) -> dict[str, Any]:
        """Rates in tokens per second, each with its range; ``touched_bytes`` are read or written for a token."""
        count, prefill, repeats = self._new_tokens, self._settings.prefill_tokens, self._settings.repeats
        long_prompt = self._long_prompt.tolist()
        decode = take_turns(
            {
                "bandwidth": self._bandwidth,
                "ours": lambda: count / seconds(self._generate),
                "peer": lambda: count / self._peer.generate_seconds(self._prompt[None], count),
            },
            repeats,
        )
        bandwidth = decode.pop("bandwidth")
        fill = take_turns(
            {
                "ours": lambda: prefill / seconds(lambda: self._llm.generate(long_prompt, None, 1)),
                "peer": lambda: prefill / self._peer.prefill_seconds(self._long_prompt[None]),
            },
            repeats,
        )
        shares = {name: [rate * touched_bytes for rate in rates] for name, rates in decode.items()}
        return {
            "decode_tokens_per_s": spreads(decode),
            "decode_ratio": Spread.of_ratios(decode["ours"], decode["peer"]),
            "read_bandwidth_gb_per_s": Spread.of(bandwidth, 1e-9),
            "touched_mb_per_token": touched_bytes / 1e6,
            "bandwidth_share": {name: Spread.of_ratios(share, bandwidth) for name, share in shares.items()},
            "prefill_tokens_per_s": spreads(fill),
            "prefill_ratio": Spread.of_ratios(fill["ours"], fill["peer"]),
            "python_overhead_us": self._python_overhead(),
        }

    def _generate(self) -> list[int]:
        params = SamplingParams(ignore_eos=True)
        return list(self._llm.generate(self._prompt.tolist(), params, self._new_tokens).token_ids)

    def _python_overhead(self) -> dict[str, Any]:
        """Microseconds from the end of one run of ONNX Runtime to the beginning of the next, in LLM.generate."""
        gaps: list[float] = []
        for _ in range(self._settings.repeats):
            with session_runs() as runs:
                self._generate()
            gaps += [after[0] - before[1] for before, after in pairwise(runs)]
        p50, p95 = (1e6 * float(value) for value in np.percentile(gaps, [50, 95]))
        return {"median": p50, "p95": p95, "steps": len(gaps)}


@contextmanager
def session_runs() -> Iterator[list[tuple[float, float]]]:
    """Begin and end (time.perf_counter) of every run of ONNX Runtime with bound inputs while entered."""
    runs: list[tuple[float, float]] = []
    original = ort.InferenceSession.run_with_iobinding

    def timed(session: Any, *arguments: Any, **options: Any) -> None:
        started = time.perf_counter()
        original(session, *arguments, **options)
        runs.append((started, time.perf_counter()))

    ort.InferenceSession.run_with_iobinding = timed
    try:
        yield runs
    finally:
        ort.InferenceSession.run_with_iobinding = original


def _targets(model: str, result: Mapping[str, Any]) -> tuple[Target, ...]:
    goals, overhead = GOALS[model], result["python_overhead_us"]["median"]
    decode, prefill = result["decode_ratio"].median, result["prefill_ratio"].median
    return (
        Target(f"{model}: decode, times transformers", decode, "at least", goals.decode, "x"),
        Target(f"{model}: prefill, times transformers", prefill, "at least", goals.prefill, "x"),
        Target(f"{model}: Python outside ONNX Runtime a step", overhead, "at most", MOST_OVERHEAD_US, "us"),
    )
