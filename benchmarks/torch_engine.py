"""Tokens per second of the torch engine on a GPU: a 2.65 B hybrid model in bfloat16, beside transformers.

An artifact in the folder of --work may lack its large weight file, which is then linked from the checkpoint.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.command import run_in_folder
from benchmarks.engine_runs import EngineRuns
from benchmarks.measure import Spread, take_turns
from benchmarks.progress import note
from benchmarks.random_checkpoint import NemotronHShape, write_random_checkpoint
from benchmarks.report import Gate, Report, Target
from benchmarks.torch_peer import TorchPeer
from hybridge.runtime.engines.torch.engine import TorchEngine

NAME, REPEATS = "torch_engine", 5
# Relative norm of logits in bfloat16 against float32; verify has the same number for such engines.
LOGITS_TOLERANCE = 5e-2
WEIGHTS = "model.safetensors"
# Twelve layers of a Nemotron-H of 8 B parameters, at its full width.
SHAPE = NemotronHShape(
    pattern="M-M-M*-M-M-M",
    hidden_size=4096,
    vocab_size=131072,
    intermediate_size=21504,
    mamba_num_heads=128,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=8,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
)


@dataclass(frozen=True)
class Goals:
    """Aims on an NVIDIA H200: tokens per second of decoding by batch size, milliseconds of a prompt by its length."""

    decode: Mapping[int, float]
    prompt_ms: Mapping[int, float]


GOALS = Goals(decode={1: 800.0, 8: 5500.0}, prompt_ms={512: 9.8, 4096: 28.2})


@dataclass(frozen=True)
class TorchEngineSettings:
    """Decoding of ``new_tokens`` after prompts of ``prompt_tokens``; prompts of the lengths that the goals name.

    device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact, None for one that goes at the end.
    """

    device: str = "cuda"
    work: str | None = None
    new_tokens: int = 128
    prompt_tokens: int = 512
    gate_tokens: int = 70
    gate_steps: int = 4
    repeats: int = REPEATS
    shape: NemotronHShape = SHAPE
    goals: Goals = GOALS


def run(settings: TorchEngineSettings) -> Report:
    """Compare values with transformers (with this engine on the CPU where it is not installed), then measure."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        checkpoint, artifact = prepared(Path(settings.work or name), settings)
        engine = TorchEngine(artifact, device=settings.device)
        runs = EngineRuns(engine)
        try:
            gates = tuple(_gates(runs, checkpoint, artifact, settings))
            if not all(gate.passed for gate in gates):
                return Report(NAME, _settings_json(settings), gates)
            results = measured(runs, checkpoint, settings)
        finally:
            engine.close()
    return Report(NAME, _settings_json(settings), gates, results, _targets(results, settings.goals))


def prepared(work: Path, settings: TorchEngineSettings) -> tuple[Path, Path]:
    """Checkpoint and artifact in the folder ``work``, made where they are missing."""
    checkpoint, artifact = work / "checkpoint", work / "artifact"
    if not (checkpoint / WEIGHTS).exists():
        write_random_checkpoint(checkpoint, settings.shape)
    if not artifact.exists():
        from hybridge.exporter.export import export_checkpoint
        from hybridge.exporter.options import ExportOptions

        longest = max(*settings.goals.prompt_ms, settings.prompt_tokens + settings.new_tokens)
        options = ExportOptions(max_batch_size=max(settings.goals.decode), max_seq_len=longest, scan=False)
        export_checkpoint(checkpoint, artifact, options)
    if not (artifact / "weights" / WEIGHTS).exists():
        os.link(checkpoint / WEIGHTS, artifact / "weights" / WEIGHTS)
    return checkpoint, artifact


def _gates(runs: EngineRuns, checkpoint: Path, artifact: Path, settings: TorchEngineSettings) -> list[Gate]:
    """Logits after a prompt, its second part in a later chunk, and after single tokens, of every batch size."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(runs.vocab_size, tokens + steps, seed=1)
    expected, against = _expected(sequence, tokens, checkpoint, artifact, settings)
    gates = []
    for batch in settings.goals.decode:
        found = runs.logits(sequence, tokens, batch)
        worst = max(relative_error(*pair) for pair in zip(found, expected, strict=True))
        checks = f"logits of {batch} rows of {tokens} tokens and {steps} decode steps against {against}, relative error"
        gates.append(Gate(checks, worst, LOGITS_TOLERANCE))
    return gates


def _expected(
    sequence: np.ndarray, tokens: int, checkpoint: Path, artifact: Path, settings: TorchEngineSettings
) -> tuple[list[np.ndarray], str]:
    """Logits after ``tokens`` of the sequence and after each one that follows, and whose they are."""
    if find_spec("transformers") is None:
        engine = TorchEngine(artifact, device="cpu")
        try:
            return EngineRuns(engine).logits(sequence, tokens, 1), "this engine on the CPU (no transformers here)"
        finally:
            engine.close()
    peer = TorchPeer(checkpoint, "float32", settings.device)
    try:
        return list(peer.logits(sequence)[tokens - 1 :]), "transformers in float32"
    finally:
        peer.close()


def measured(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> dict[str, Any]:
    """Everything that is measured, ours and, where transformers is installed, the peer's in turns."""
    peer = TorchPeer(checkpoint, "bfloat16", settings.device) if find_spec("transformers") is not None else None
    decode = {str(batch): _decode(runs, peer, batch, settings) for batch in settings.goals.decode}
    prompts = {str(length): _prompt(runs, peer, length, settings) for length in settings.goals.prompt_ms}
    return {"decode_tokens_per_s": decode, "prompt_ms": prompts, "device": runs.device_name}


def _decode(runs: EngineRuns, peer: TorchPeer | None, batch: int, settings: TorchEngineSettings) -> dict[str, Any]:
    prompt = _rows(runs, batch, settings.prompt_tokens)
    count = settings.new_tokens
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: batch / runs.step_seconds(prompt, count, greedy=False),
        "ours_greedy": lambda: batch / runs.step_seconds(prompt, count, greedy=True),
    }
    if peer is not None:
        contestants["transformers_greedy"] = lambda: batch / peer.decode_seconds(prompt, count)
    rates = take_turns(contestants, settings.repeats)
    note(f"decoding of {batch} rows measured")
    return {name: Spread.of(values).to_json() for name, values in rates.items()}


def _prompt(runs: EngineRuns, peer: TorchPeer | None, length: int, settings: TorchEngineSettings) -> dict[str, Any]:
    prompt = _rows(runs, 1, length)
    contestants: dict[str, Callable[[], float]] = {"ours": lambda: 1e3 * runs.prompt_seconds(prompt)}
    if peer is not None:
        contestants["transformers"] = lambda: 1e3 * peer.prefill_seconds(prompt)
    times = take_turns(contestants, settings.repeats, warmup=2)
    note(f"prompts of {length} tokens measured")
    return {name: Spread.of(values).to_json() for name, values in times.items()}


def _rows(runs: EngineRuns, batch: int, length: int) -> np.ndarray:
    return random_prompt(runs.vocab_size, batch * length, seed=2).reshape(batch, length)


def _targets(results: Mapping[str, Any], goals: Goals) -> tuple[Target, ...]:
    decode = [
        Target(
            f"decode at batch {batch}, logits in host memory",
            results["decode_tokens_per_s"][str(batch)]["ours"]["median"],
            "at least",
            goal,
            "tokens/s",
        )
        for batch, goal in goals.decode.items()
    ]
    prompts = [
        Target(f"prompt of {length} tokens", results["prompt_ms"][str(length)]["ours"]["median"], "at most", goal, "ms")
        for length, goal in goals.prompt_ms.items()
    ]
    return (*decode, *prompts)


def _settings_json(settings: TorchEngineSettings) -> dict[str, Any]:
    """The settings without the folder, which says nothing about the numbers."""
    return {name: value for name, value in asdict(settings).items() if name not in ("work", "goals")}


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    return run_in_folder(
        __doc__ or "", lambda repeats, work: run(TorchEngineSettings(work=work, repeats=repeats)), REPEATS
    )


if __name__ == "__main__":
    sys.exit(main())
