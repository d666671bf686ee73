"""Tokens per second on the CPU against transformers: decoding, prefill, bandwidth and the cost of our own Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
from benchmarks.python_time import python_time
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
            "python_overhead_us": python_time(self._generate, self._settings.repeats),
        }

    def _generate(self) -> list[int]:
        params = SamplingParams(ignore_eos=True)
        return list(self._llm.generate(self._prompt.tolist(), params, self._new_tokens).token_ids)


def _targets(model: str, result: Mapping[str, Any]) -> tuple[Target, ...]:
    goals, overhead = GOALS[model], result["python_overhead_us"]["median"]
    decode, prefill = result["decode_ratio"].median, result["prefill_ratio"].median
    return (
        Target(f"{model}: decode, times transformers", decode, "at least", goals.decode, "x"),
        Target(f"{model}: prefill, times transformers", prefill, "at least", goals.prefill, "x"),
        Target(f"{model}: Python outside ONNX Runtime a step", overhead, "at most", MOST_OVERHEAD_US, "us"),
    )
