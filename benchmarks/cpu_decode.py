"""Tokens per second on the CPU against transformers: decoding, prefill, bandwidth and the cost of our own Python."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import logits_gate, prompt_logits, random_prompt, tokens_gate
from benchmarks.artifacts import DELTA_CHECKPOINT, DEMO_CHECKPOINT, exported, touched_bytes_per_token
from benchmarks.command import run_command
from benchmarks.engine_time import EngineTime
from benchmarks.machine import ReadBandwidth
from benchmarks.measure import Spread, seconds, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import DECODE_SHAPE, NemotronHShape, write_random_checkpoint
from benchmarks.report import Gate, Report, Target
from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams

NAME, REPEATS = "cpu_decode", 7
DEMO, DELTA, RANDOM = "demo", "demo Qwen3-Next", "random 150M"
MOST_OVERHEAD_US = 150.0


@dataclass(frozen=True)
class Goals:
    """Aims for one model as ratios of our speed to the peer's."""

    decode: float
    prefill: float


GOALS = {
    DEMO: Goals(decode=4.0, prefill=1.0),
    DELTA: Goals(decode=3.0, prefill=1.0),
    RANDOM: Goals(decode=1.2, prefill=1 / 1.2),
}


@dataclass(frozen=True)
class DecodeSettings:
    """Prompt of ``prompt_tokens``, then ``new_tokens`` greedy ones (by model); ``prefill_tokens`` apart from that."""

    new_tokens: Mapping[str, int]
    prompt_tokens: int = 16
    prefill_tokens: int = 512
    threads: int = 2
    repeats: int = REPEATS
    shape: NemotronHShape = DECODE_SHAPE
    bandwidth_bytes: int = 512 * 2**20


DEFAULTS = DecodeSettings({DEMO: 256, DELTA: 256, RANDOM: 64})


def run(settings: DecodeSettings) -> Report:
    """Measure the checkpoints that ship and a random one; all are exported here."""
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    bandwidth = ReadBandwidth(settings.threads, settings.bandwidth_bytes)
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        random = Path(name) / "checkpoint"
        write_random_checkpoint(random, settings.shape)
        for model, checkpoint in ((DEMO, DEMO_CHECKPOINT), (DELTA, DELTA_CHECKPOINT), (RANDOM, random)):
            artifact = exported(checkpoint, Path(name) / model.replace(" ", "-"))
            peer = Peer(checkpoint, settings.threads)
            with LLM(artifact, engine="onnxruntime", threads=settings.threads) as llm:
                contest = _Contest(model, llm, peer, settings, bandwidth)
                gates += contest.gates()
                if all(gate.passed for gate in gates):
                    results[model] = contest.measure(touched_bytes_per_token(checkpoint, llm.config))
                    targets += _targets(model, results[model])
            del peer
    return Report(NAME, asdict(settings), tuple(gates), results, tuple(targets))


class _Contest:
    """One model: ours and the peer's, on the same prompts."""

    def __init__(
        self, model: str, llm: LLM, peer: Peer, settings: DecodeSettings, bandwidth: Callable[[], float]
    ) -> None:
        self._model, self._llm, self._peer, self._settings, self._bandwidth = model, llm, peer, settings, bandwidth
        assert isinstance(llm.engine, DenseAsPaged), "the artifact has the dense layout"
        self._engine = llm.engine.dense
        self._new_tokens = settings.new_tokens[model]
        vocabulary = llm.config.vocab_size
        self._prompt = random_prompt(vocabulary, settings.prompt_tokens)
        self._long_prompt = random_prompt(vocabulary, settings.prefill_tokens)

    def gates(self) -> list[Gate]:
        """Logits, then greedy tokens of both of our ways."""
        gate = logits_gate(self._engine, self._peer, self._settings.prefill_tokens, 4)
        expected = self._peer.generate(self._prompt, self._new_tokens)
        return [
            replace(gate, checks=f"{self._model}: {gate.checks}"),
            tokens_gate(f"{self._model}, LLM.generate", self._generate(self._new_tokens), expected),
            tokens_gate(f"{self._model}, engine loop", self._engine_loop(), expected),
        ]

    def measure(self, touched_bytes: float) -> dict[str, Any]:
        """Rates in tokens per second, each with its range; ``touched_bytes`` are read or written for a token."""
        count, prefill = self._new_tokens, self._settings.prefill_tokens
        decode = take_turns(
            {
                "bandwidth": self._bandwidth,
                "ours": lambda: count / seconds(lambda: self._generate(count)),
                "engine_loop": lambda: count / seconds(self._engine_loop),
                "peer": lambda: count / seconds(lambda: self._peer.generate(self._prompt, count)),
            },
            self._settings.repeats,
        )
        fill = take_turns(
            {
                "ours": lambda: prefill / seconds(lambda: self._llm.generate(self._long_prompt.tolist(), None, 1)),
                "peer": lambda: prefill / seconds(lambda: self._peer.prefill(self._long_prompt)),
            },
            self._settings.repeats,
        )
        return {
            "decode_tokens_per_s": {name: Spread.of(decode[name]).to_json() for name in decode if name != "bandwidth"},
            "decode_ratio": Spread.of_ratios(decode["ours"], decode["peer"]).to_json(),
            "engine_loop_ratio": Spread.of_ratios(decode["engine_loop"], decode["peer"]).to_json(),
            "read_bandwidth_gb_per_s": Spread.of(value / 1e9 for value in decode["bandwidth"]).to_json(),
            "touched_mb_per_token": touched_bytes / 1e6,
            "bandwidth_share": {
                name: Spread.of_ratios((rate * touched_bytes for rate in decode[name]), decode["bandwidth"]).to_json()
                for name in ("ours", "engine_loop", "peer")
            },
            "prefill_tokens_per_s": {name: Spread.of(rates).to_json() for name, rates in fill.items()},
            "prefill_ratio": Spread.of_ratios(fill["ours"], fill["peer"]).to_json(),
            "python_overhead_us": self._python_overhead(),
        }

    def _generate(self, new_tokens: int) -> list[int]:
        params = SamplingParams(ignore_eos=True)
        return list(self._llm.generate(self._prompt.tolist(), params, new_tokens).token_ids)

    def _engine_loop(self) -> list[int]:
        """Greedy decoding with nothing but the engine, the caches and an argmax."""
        engine, length = self._engine, self._prompt.size
        states = engine.allocate_states(1, length + self._new_tokens)
        tokens = [int(prompt_logits(engine, states, self._prompt).argmax())]
        decoder = engine.decoder([0], states)
        for position in range(length, length + self._new_tokens - 1):
            (logits,) = decoder.step(tokens[-1:], [position])
            tokens.append(int(np.argmax(logits)))
        return tokens

    def _python_overhead(self) -> dict[str, Any]:
        """Microseconds from the end of one run of ONNX Runtime to the beginning of the next, in LLM.generate."""
        gaps: list[float] = []
        for _ in range(self._settings.repeats):
            with EngineTime() as engine_time:
                self._generate(self._new_tokens)
            gaps += engine_time.gaps()
        p50, p95 = (1e6 * float(value) for value in np.percentile(gaps, [50, 95]))
        return {"median": p50, "p95": p95, "steps": len(gaps)}


def _targets(model: str, result: Mapping[str, Any]) -> tuple[Target, ...]:
    goals = GOALS[model]
    return (
        Target(f"{model}: decode, times transformers", result["decode_ratio"]["median"], "at least", goals.decode, "x"),
        Target(
            f"{model}: prefill, times transformers", result["prefill_ratio"]["median"], "at least", goals.prefill, "x"
        ),
        Target(
            f"{model}: Python outside ONNX Runtime a step",
            result["python_overhead_us"]["median"],
            "at most",
            MOST_OVERHEAD_US,
            "us",
        ),
    )


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(replace(DEFAULTS, repeats=repeats)), REPEATS))
