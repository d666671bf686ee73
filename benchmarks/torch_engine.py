"""Tokens per second of the torch engine on a GPU, compared with transformers: a 2.65 B hybrid model in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import EngineRuns, device_name
from benchmarks.measure import note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Direction, Gate, Report, Target, require
from hybridge.runtime.engines.torch.engine import TorchEngine

DECODE_TITLE = "decode at batch {}, logits in host memory"


@dataclass(frozen=True)
class TorchEngineSettings:
    """Decoding of ``new_tokens`` after prompts of ``prompt_tokens`` in each of ``batches`` rows, and ``prompts`` of
    these lengths. decode_goals: tokens per second by batch size on an NVIDIA H200; prompt_goals: milliseconds by
    length. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact."""

    device: str = "cuda"
    new_tokens: int = 128
    prompt_tokens: int = 512
    gate_tokens: int = 70
    gate_steps: int = 4
    repeats: int = 5
    batches: tuple[int, ...] = (1, 8)
    prompts: tuple[int, ...] = (512, 4096)
    work: str | None = None
    model: Config = field(default_factory=lambda: GPU_MODEL)
    decode_goals: Mapping[int, float] = field(default_factory=lambda: {1: 800.0, 8: 5500.0})
    prompt_goals: Mapping[int, float] = field(default_factory=lambda: {512: 9.8, 4096: 28.2})


def run(settings: TorchEngineSettings) -> Report:
    """Compare values with transformers, then measure."""
    with work_folder(settings.work) as work:
        gates, results = _compared(work, settings)
    targets = [
        *_targets(results["decode_tokens_per_s"], settings.decode_goals, DECODE_TITLE, "at least", "tokens/s"),
        *_targets(results["prompt_ms"], settings.prompt_goals, "prompt of {} tokens", "at most", "ms"),
    ]
    return Report(gates, results, tuple(targets))


def _compared(work: Path, settings: TorchEngineSettings) -> tuple[tuple[Gate, ...], dict[str, Any]]:
    artifact, checkpoint = prepared(work, settings), work / "checkpoint"
    with closing(TorchEngine(artifact, device=settings.device)) as engine:
        runs = EngineRuns(engine)
        gates = require(*_gates(runs, checkpoint, settings))
        return gates, {**_measured(runs, checkpoint, settings), "device": device_name(engine.device)}


def prepared(work: Path, settings: TorchEngineSettings) -> Path:
    """The artifact in the folder ``work``."""
    rows, longest = max(settings.batches), max(*settings.prompts, settings.prompt_tokens + settings.new_tokens)
    return linked_artifact(work, "artifact", settings.model, max_batch_size=rows, max_seq_len=longest)


def _targets(
    measured: Mapping[int, Any], goals: Mapping[int, float], title: str, direction: Direction, unit: str
) -> list[Target]:
    """Our medians with logits in host memory, of the sizes that have goals."""
    found = {size: measured[size]["ours"].median for size in goals if size in measured}
    return [Target(title.format(size), value, direction, goals[size], unit) for size, value in found.items()]


def _gates(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> list[Gate]:
    """Logits after a prompt, its second part in a later chunk, and after single tokens, of every batch size."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(runs.vocab_size, tokens + steps, seed=1)
    with closing(Peer(checkpoint, device=settings.device)) as peer:
        expected = peer.logits(sequence)[tokens - 1 :]
    gates = []
    for batch in settings.batches:
        checks = f"logits of {batch} rows of {tokens} tokens and {steps} decode steps against transformers in float32"
        gates.append(error_gate(checks, runs.logits(sequence, tokens, batch), expected, BFLOAT16_TOLERANCE))
        note(f"{checks}: {gates[-1].value:.2g}")
    return gates


def _measured(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> dict[str, Any]:
    """Ours and the peer's in turns."""
    peer = Peer(checkpoint, dtype="bfloat16", device=settings.device)
    return {
        "decode_tokens_per_s": {batch: _decode(runs, peer, batch, settings) for batch in settings.batches},
        "prompt_ms": {length: _prompt(runs, peer, length, settings) for length in settings.prompts},
    }


def _decode(runs: EngineRuns, peer: Peer, batch: int, settings: TorchEngineSettings) -> dict[str, Any]:
    length, count = settings.prompt_tokens, settings.new_tokens
    prompt = random_prompt(runs.vocab_size, batch * length, seed=2).reshape(batch, length)
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: batch / runs.step_seconds(prompt, count, greedy=False),
        "ours_greedy": lambda: batch / runs.step_seconds(prompt, count, greedy=True),
        "transformers_greedy": lambda: batch / peer.step_seconds(prompt, count),
    }
    rates = take_turns(contestants, settings.repeats)
    note(f"decoding of {batch} rows measured")
    return dict(spreads(rates))


def _prompt(runs: EngineRuns, peer: Peer, length: int, settings: TorchEngineSettings) -> dict[str, Any]:
    prompt = random_prompt(runs.vocab_size, length, seed=2)[None]
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: runs.prompt_seconds(prompt),
        "transformers": lambda: peer.prefill_seconds(prompt),
    }
    times = take_turns(contestants, settings.repeats, warmup=2)
    note(f"prompts of {length} tokens measured")
    return dict(spreads(times, 1e3))
