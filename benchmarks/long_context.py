"""Prompts and decode steps at contexts of up to 128k tokens of the torch engine on a GPU, beside transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import EngineRuns, device_name
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import Config, nemotron_h
from benchmarks.runner import Gate, Report, Target, require
from hybridge.runtime.engines.torch.engine import TorchEngine

# Without these, transformers scans in torch, which needs more memory for a long prompt than a GPU has.
_PEER_KERNELS = ("mamba_ssm", "causal_conv1d")


@dataclass(frozen=True)
class LongContextSettings:
    """One prompt of each of ``prompts`` tokens, and ``new_tokens`` decode steps after it, at batch 1.

    step_goal: the time of a step after the longest prompt divided by that after the shortest. prompt_goal: the time of
    transformers for the longest prompt of up to ``peer_tokens`` divided by ours: mamba_ssm 2.3.2 counts elements in 32
    bits, too few for one prompt of 128k tokens here. Logits after prompts of ``gate_tokens`` and ``gate_steps`` more
    tokens are compared with transformers in float32. device: "cuda" or "cpu". work: a folder that keeps checkpoint and
    artifact.
    """

    device: str = "cuda"
    prompts: tuple[int, ...] = (1024, 65_536, 131_072)
    peer_tokens: int = 65_536
    new_tokens: int = 64
    gate_tokens: int = 70
    gate_steps: int = 4
    repeats: int = 3
    work: str | None = None
    # One layer of eight is attention.
    model: Config = field(default_factory=lambda: nemotron_h("M-M*-M-M", max_position_embeddings=2**18))
    step_goal: float = 1.25
    prompt_goal: float = 1.3


def run(settings: LongContextSettings) -> Report:
    """Compare values with transformers, then measure."""
    with work_folder(settings.work) as work:
        most = max(settings.prompts) + settings.new_tokens + EngineRuns.WARM_STEPS
        folder = linked_artifact(work, "artifact-long", settings.model, max_batch_size=1, max_seq_len=most)
        with closing(TorchEngine(folder, device=settings.device)) as engine:
            runs = EngineRuns(engine)
            gates = require(_gate(runs, work / "checkpoint", settings))
            contestants: dict[str, Callable[[Any], float]] = {"ours": runs.prompt_seconds}
            if settings.device != "cuda" or all(find_spec(name) is not None for name in _PEER_KERNELS):
                peer = Peer(work / "checkpoint", dtype="bfloat16", device=settings.device)
                contestants["transformers"] = peer.prefill_seconds
            results = {length: _measured(runs, contestants, length, settings) for length in settings.prompts}
            device = device_name(engine.device)
    return Report(gates, {"device": device, "contexts": results}, tuple(_targets(results, settings)))


def _gate(runs: EngineRuns, checkpoint: Path, settings: LongContextSettings) -> Gate:
    """Logits after a prompt, its second part in a later chunk, and after single tokens."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(runs.vocab_size, tokens + steps, seed=1)
    with closing(Peer(checkpoint, device=settings.device)) as peer:
        expected = peer.logits(sequence)[tokens - 1 :]
    checks = f"logits of {tokens} tokens and {steps} decode steps against transformers in float32"
    return error_gate(checks, runs.logits(sequence, tokens, 1), expected, BFLOAT16_TOLERANCE)


def _measured(
    runs: EngineRuns, contestants: Mapping[str, Callable[[Any], float]], length: int, settings: LongContextSettings
) -> dict[str, Any]:
    """Milliseconds of the prompt and of a decode step after it."""
    prompt = random_prompt(runs.vocab_size, length, seed=2)[None]
    turns = {name: (lambda seconds=seconds: seconds(prompt)) for name, seconds in contestants.items()}
    if length > settings.peer_tokens:
        turns.pop("transformers", None)
    times = take_turns(turns, settings.repeats)
    note(f"prompts of {length} tokens measured")
    steps = [runs.step_seconds(prompt, settings.new_tokens, greedy=False) for _ in range(settings.repeats)]
    note(f"decode steps after {length} tokens measured")
    found = {"prompt_ms": spreads(times, 1e3), "step_ms": Spread.of(steps, 1e3)}
    if "transformers" in times:
        found["prompt_ratio"] = Spread.of_ratios(times["transformers"], times["ours"])
    return found


def _targets(results: Mapping[int, Any], settings: LongContextSettings) -> list[Target]:
    shortest, longest = min(results), max(results)
    ratio = results[longest]["step_ms"].median / results[shortest]["step_ms"].median
    title = f"a decode step after {longest} tokens, time over that after {shortest}"
    targets = [Target(title, ratio, "at most", settings.step_goal, "times")]
    if compared := [length for length, found in results.items() if "prompt_ratio" in found]:
        title = f"prompt of {max(compared)} tokens, time of transformers over ours"
        ratio = results[max(compared)]["prompt_ratio"].median
        targets.append(Target(title, ratio, "at least", settings.prompt_goal, "times"))
    return targets
