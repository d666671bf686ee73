"""Tokens per second of the torch engine on a GPU: a 2.65 B hybrid model in bfloat16 and int4, beside transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import exported, linked_artifact, work_folder
from benchmarks.engine_runs import EngineRuns, device_name
from benchmarks.int4_checkpoint import write_int4_checkpoints
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Direction, Gate, Report, Target, require
from benchmarks.traffic import serve
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.prefix_cache.settings import OFF
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

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
    decode_goals: Mapping[int, float] = field(default_factory=lambda: {1: 880.0, 8: 5500.0})
    prompt_goals: Mapping[int, float] = field(default_factory=lambda: {512: 9.8, 4096: 28.2})


def run(settings: TorchEngineSettings) -> Report:
    """Compare values with transformers, then measure."""
    with work_folder(settings.work) as work:
        gates, results = _compared(work, settings)
        gate, results["served_tokens_per_s"], results["device_step_us"] = _served(work, settings)
        gates += require(gate)
    targets = [
        *_targets(results["decode_tokens_per_s"], settings.decode_goals, DECODE_TITLE, "at least", "tokens/s"),
        *_targets(results["prompt_ms"], settings.prompt_goals, "prompt of {} tokens", "at most", "ms"),
    ]
    return Report(gates, results, tuple(targets))


@dataclass(frozen=True)
class Int4Settings(TorchEngineSettings):
    """Settings as in bfloat16. prompt_ratio: goal for the longest prompt's time divided by that in bfloat16."""

    decode_goals: Mapping[int, float] = field(default_factory=lambda: {1: 1900.0, 8: 9000.0})
    prompt_goals: Mapping[int, float] = field(default_factory=dict)
    prompt_ratio: float = 1.15


def run_int4(settings: Int4Settings) -> Report:
    """The same model in int4 and in bfloat16, which represents the int4 weights exactly.

    Its logits are compared with transformers in float32; then both are measured in turns.
    """
    with work_folder(settings.work) as parent:
        work = parent / "int4"  # beside the model of the other benchmark
        checkpoint, quantized = work / "checkpoint", work / "quantized"
        if not quantized.exists():
            write_int4_checkpoints(checkpoint, quantized, settings.model)
        plain = prepared(work, settings)
        packed = work / "int4_artifact"
        if not packed.exists():
            exported(quantized, packed, **step_limits(settings))
        with closing(TorchEngine(packed, device=settings.device)) as engine:
            runs = EngineRuns(engine)
            gates = require(*compared_logits(runs, checkpoint, settings))
            with closing(TorchEngine(plain, device=settings.device)) as other:
                results = _measured_pair(runs, EngineRuns(other), settings)
            results |= {"device": device_name(engine.device)}
    longest = max(settings.prompts)
    times = results["prompt_ms"][longest]
    ratio = times["int4"].median / times["bfloat16"].median
    title = f"prompt of {longest} tokens, time over that in bfloat16"
    targets = [
        *_targets(results["decode_tokens_per_s"], settings.decode_goals, DECODE_TITLE, "at least", "tokens/s", "int4"),
        Target(title, ratio, "at most", settings.prompt_ratio, "times"),
    ]
    return Report(gates, results, tuple(targets))


def _measured_pair(int4: EngineRuns, plain: EngineRuns, settings: Int4Settings) -> dict[str, Any]:
    """Decode steps and prompts of both engines in turns."""
    count = settings.new_tokens
    decode: dict[int, dict[str, Callable[[], float]]] = {}
    prompts: dict[int, dict[str, Callable[[], float]]] = {}
    engines = {"int4": int4, "bfloat16": plain}
    for batch in settings.batches:
        prompt = random_prompt(int4.vocab_size, batch * settings.prompt_tokens, seed=2).reshape(batch, -1)
        decode[batch] = {
            name + ("_greedy" if greedy else ""): partial(_rate, runs, prompt, count, greedy)
            for name, runs in engines.items()
            for greedy in (False, True)
        }
    for length in settings.prompts:
        prompt = random_prompt(int4.vocab_size, length, seed=2)[None]
        prompts[length] = {name: partial(runs.prompt_seconds, prompt) for name, runs in engines.items()}
    return {
        "decode_tokens_per_s": {
            batch: dict(spreads(take_turns(each, settings.repeats))) for batch, each in decode.items()
        },
        "prompt_ms": {
            length: dict(spreads(take_turns(each, settings.repeats, warmup=2), 1e3)) for length, each in prompts.items()
        },
    }


def _rate(runs: EngineRuns, prompt: np.ndarray, count: int, greedy: bool) -> float:
    """Tokens per second of all rows."""
    return len(prompt) / runs.step_seconds(prompt, count, greedy)


def _compared(work: Path, settings: TorchEngineSettings) -> tuple[tuple[Gate, ...], dict[str, Any]]:
    artifact, checkpoint = prepared(work, settings), work / "checkpoint"
    with closing(TorchEngine(artifact, device=settings.device)) as engine:
        runs = EngineRuns(engine)
        gates = require(*compared_logits(runs, checkpoint, settings))
        return gates, {**_measured(runs, checkpoint, settings), "device": device_name(engine.device)}


def _served(work: Path, settings: TorchEngineSettings) -> tuple[Gate, dict[int, dict[str, Spread]], dict[int, Spread]]:
    """Tokens per second of greedy requests in steps where all rows decode, with a chain of steps and without; and the
    device's microseconds of such a step without one, from the end of its launch to its tokens."""
    folder = linked_artifact(work, "artifact-paged", settings.model, layout="paged", **step_limits(settings))
    count, wrong = settings.new_tokens, 0
    found: dict[int, dict[str, Spread]] = {batch: {} for batch in settings.batches}
    device: dict[int, Spread] = {}
    answers: dict[int, list[tuple[int, ...]]] = {}
    for name in ("chained", "single"):
        with closing(TorchPagedEngine(folder, settings.device, chains_steps=name == "chained")) as engine:
            serving = ServingSettings(max_rows=max(settings.batches), prefix_cache=OFF)
            loop = ServingLoop(engine, serving, (), None)
            for batch in settings.batches:
                prompt = random_prompt(engine.config.vocab_size, batch * settings.prompt_tokens, seed=2)
                prompts = prompt.reshape(batch, -1).tolist()
                runs = [serve(loop, prompts, [0.0] * batch, count) for _ in range(1 + settings.repeats)]
                steps = [[s for s in run.steps if s.rows == s.tokens == batch] for run in runs[1:]]
                found[batch][name] = Spread.of(batch * len(each) / sum(s.wall for s in each) for each in steps)
                if name == "single":
                    device[batch] = Spread.of((median(s.device for s in each) for each in steps), 1e6)
                wrong += answers.setdefault(batch, runs[-1].answers) != runs[-1].answers
    return Gate("batches with answers that differ in a chain of steps", float(wrong), 0.0), found, device


def prepared(work: Path, settings: TorchEngineSettings) -> Path:
    """The artifact in the folder ``work``."""
    return linked_artifact(work, "artifact", settings.model, **step_limits(settings))


def step_limits(settings: TorchEngineSettings) -> dict[str, int]:
    """Options of the export: rows, and positions of the longest run."""
    longest = max(*settings.prompts, settings.prompt_tokens + settings.new_tokens)
    return {"max_batch_size": max(settings.batches), "max_seq_len": longest}


def _targets(
    measured: Mapping[int, Any],
    goals: Mapping[int, float],
    title: str,
    direction: Direction,
    unit: str,
    name: str = "ours",
) -> list[Target]:
    """Targets for medians of the contestant ``name`` with logits in host memory, for sizes that have goals."""
    found = {size: measured[size][name].median for size in goals if size in measured}
    return [Target(title.format(size), value, direction, goals[size], unit) for size, value in found.items()]


def compared_logits(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> list[Gate]:
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
        "decode_tokens_per_s": {batch: decode_rates(runs, peer, batch, settings) for batch in settings.batches},
        "prompt_ms": {length: _prompt(runs, peer, length, settings) for length in settings.prompts},
    }


def decode_rates(runs: EngineRuns, peer: Peer, batch: int, settings: TorchEngineSettings) -> dict[str, Any]:
    """Tokens per second of decoding ``batch`` rows, ours and the peer's in turns."""
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
