"""Decode steps of many rows: recurrent states with rings, compared with a write in every step.

A 2.65 B hybrid model in bfloat16, and the kernels of three operators with float32 states, on a GPU. Steps are timed in
two ways, each of which is the same for both kinds of states:

served      in a serving loop, which launches a step while the one before it runs: the target is about these
serial      one by one: each is launched once the tokens of the one before it are in host memory, so that the GPU waits
            for the host between two steps
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import device_name
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.paged_runs import paged_logits
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import old_objects_frozen, serve
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.prefix_cache.settings import OFF
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

_BLOCK = 16
# Steps before the clock starts: the first runs directly, the second records the graph.
_WARM_STEPS = 3


@dataclass(frozen=True)
class StateRingSettings:
    """``steps`` decode steps of ``rows`` rows; steps are a multiple of RING.

    Logits after ``gate_tokens`` and ``gate_steps`` more tokens are compared with transformers in float32. step_goal:
    time of a served step with plain states divided by that with rings; kernel_goals: the same of the kernels, on a GPU.
    device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact.
    """

    device: str = "cuda"
    rows: int = 64
    steps: int = 64
    gate_tokens: int = 20
    gate_steps: int = 20
    repeats: int = 5
    work: str | None = None
    model: Config = field(default_factory=lambda: GPU_MODEL)
    step_goal: float = 1.2
    kernel_goals: Mapping[str, float] = field(
        default_factory=lambda: {"update_ssm_state": 131 / 90, "gated_delta_rule": 67.9 / 48}
    )


def run(settings: StateRingSettings) -> Report:
    """Compare values with transformers and with float64, then measure."""
    kernels: dict[str, Any] = {}
    if settings.device == "cuda":
        from benchmarks.kernels.state_rings import measured_kernels

        gates, kernels = measured_kernels(settings.rows)
        require(*gates)
        note("kernels measured")
    else:
        gates = ()
    with work_folder(settings.work) as work:
        most = max(settings.gate_tokens + settings.gate_steps, 1 + _WARM_STEPS + settings.steps)
        limits = {"max_batch_size": settings.rows, "max_seq_len": most}
        folder = linked_artifact(work, "artifact-rows", settings.model, layout="paged", **limits)
        engines = (closing(TorchPagedEngine(folder, settings.device)) for _ in range(2))
        with next(engines) as plain, next(engines) as ringed:
            ringed.use_state_rings(settings.rows)
            gates += require(_gate(ringed, work / "checkpoint", settings))
            device, share = device_name(plain.device), ringed.slot_bytes / plain.slot_bytes
            both = {"plain": plain, "rings": ringed}
            serial = take_turns({n: partial(_serial_seconds, e, settings) for n, e in both.items()}, settings.repeats)
            # Loops make pools of their own.
            loops = {"plain": _loop(plain, settings), "rings": _loop(ringed, settings, settings.rows)}
            served = take_turns({n: partial(_served_seconds, e, settings) for n, e in loops.items()}, settings.repeats)
    ratio = Spread.of_ratios(served["plain"], served["rings"])
    results = {
        "device": device,
        "served_step_ms": spreads(served, 1e3),
        "served_step_ratio": ratio,
        "step_ms": spreads(serial, 1e3),
        "step_ratio": Spread.of_ratios(serial["plain"], serial["rings"]),
        "slot_bytes_ratio": share,
    }
    targets = [Target(f"a served step of {settings.rows} rows", ratio.median, "at least", settings.step_goal, "times")]
    for name, goal in settings.kernel_goals.items():
        if name in kernels:
            targets.append(Target(name, kernels[name]["ratio"], "at least", goal, "times"))
    return Report(gates, {**results, "kernels": kernels}, tuple(targets))


def _gate(engine: TorchPagedEngine, checkpoint: Path, settings: StateRingSettings) -> Gate:
    """Logits over a whole ring and further."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(engine.config.vocab_size, tokens + steps, seed=1)
    with closing(Peer(checkpoint, device=settings.device)) as peer:
        expected = peer.logits(sequence)[tokens - 1 :]
    checks = f"logits of {tokens} tokens and {steps} decode steps against transformers in float32"
    return error_gate(checks, paged_logits(engine, sequence, tokens, settings.rows), expected, BFLOAT16_TOLERANCE)


def _serial_seconds(engine: TorchPagedEngine, settings: StateRingSettings) -> float:
    """Seconds of one decode step, with its most likely tokens in host memory; the states are empty at first."""
    count = _WARM_STEPS + settings.steps
    pools = EqualRows(engine, settings.rows, count, _BLOCK)
    ids = np.ones((settings.rows, 1), np.int64)
    run: Callable[[int], object] = lambda past: engine.launch(pools.inputs(ids, past)).best_tokens()  # noqa: E731
    for past in range(_WARM_STEPS):
        run(past)
    started = time.perf_counter()
    for past in range(_WARM_STEPS, count):
        run(past)
    return (time.perf_counter() - started) / settings.steps


def _loop(engine: TorchPagedEngine, settings: StateRingSettings, ring_rows: int | None = None) -> ServingLoop:
    """A loop that does nothing but decode ``rows`` rows."""
    rows = settings.rows
    limits = ServingSettings(max_rows=rows, max_tokens=rows, block_size=_BLOCK, prefix_cache=OFF, ring_rows=ring_rows)
    return ServingLoop(engine, limits, (), None)


def _served_seconds(loop: ServingLoop, settings: StateRingSettings) -> float:
    """Seconds of one decode step of ``loop``; prompts of one token, so that the states are empty at first."""
    rows, count = settings.rows, _WARM_STEPS + settings.steps
    with old_objects_frozen():
        served = serve(loop, [[1]] * rows, [0.0] * rows, count)
    if [step.tokens for step in served.steps] != [rows] * count:
        raise RuntimeError(f"expected {count} steps of {rows} rows, found others")
    return sum(step.wall for step in served.steps[_WARM_STEPS:]) / settings.steps
