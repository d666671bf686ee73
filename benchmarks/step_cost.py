"""A decode step with much room in its caches against one with little: it should cost what its tokens cost."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.agreement import logits_gate, random_prompt
from benchmarks.artifacts import DEMO_CHECKPOINT, exported
from benchmarks.command import run_command
from benchmarks.measure import Spread, take_turns
from benchmarks.peer import Peer
from benchmarks.report import Gate, Report, Target
from hybridge.runtime.engines import Engine, create_engine
from hybridge.runtime.engines.base import StateSet, StepInputs
from hybridge.runtime.engines.factory import EngineOptions

NAME, REPEATS = "step_cost", 60
MOST_RATIO = 1.2


@dataclass(frozen=True)
class StepCostSettings:
    """Blocks of ``steps`` after ``context`` tokens, in caches with room for ``small`` or ``large`` tokens."""

    small: int = 256
    large: int = 8192
    context: int = 128
    steps: int = 16
    threads: int = 2
    repeats: int = REPEATS


def run(settings: StepCostSettings) -> Report:
    """Export the checkpoint that ships twice and measure a step of each in turns, all of max_seq_len allocated."""
    engines: dict[int, Engine] = {}
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        for capacity in (settings.small, settings.large):
            artifact = exported(DEMO_CHECKPOINT, Path(name) / str(capacity), max_seq_len=capacity)
            engines[capacity] = create_engine(artifact, "onnxruntime", EngineOptions(settings.threads))
        gates = _gates(engines, settings)
        if not all(gate.passed for gate in gates):
            return Report(NAME, asdict(settings), gates)
        steps = {capacity: _Steps(engine, settings) for capacity, engine in engines.items()}
        times = take_turns({str(capacity): measured for capacity, measured in steps.items()}, settings.repeats)
    for engine in engines.values():
        engine.close()
    ratio = Spread.of_ratios(times[str(settings.large)], times[str(settings.small)])
    results = {
        "step_us": {name: Spread.of(1e6 * value for value in values).to_json() for name, values in times.items()},
        "ratio": ratio.to_json(),
    }
    title = f"step at {settings.context} tokens, max_seq_len {settings.large} over {settings.small}"
    return Report(NAME, asdict(settings), gates, results, (Target(title, ratio.median, "at most", MOST_RATIO, "x"),))


class _Steps:
    """Called, returns the median seconds of ``steps`` decode steps; every call goes back to ``context`` tokens."""

    def __init__(self, engine: Engine, settings: StepCostSettings) -> None:
        self._engine, self._settings = engine, settings
        self._tokens = random_prompt(engine.config.vocab_size, settings.context + settings.steps)
        self._states = engine.allocate_states(1, engine.max_seq_len)
        _step(engine, self._states, self._tokens[: settings.context], 0)

    def __call__(self) -> float:
        context = self._settings.context
        times = []
        for position in range(context, context + self._settings.steps):
            started = time.perf_counter()
            _step(self._engine, self._states, self._tokens[position : position + 1], position)
            times.append(time.perf_counter() - started)
        return median(times)


def _step(engine: Engine, states: StateSet, tokens: np.ndarray, past: int) -> None:
    lengths = np.array([tokens.size], np.int32), np.array([past], np.int32)
    engine.step(StepInputs(tokens[None], *lengths), states)


def _gates(engines: dict[int, Engine], settings: StepCostSettings) -> tuple[Gate, ...]:
    peer = Peer(DEMO_CHECKPOINT, settings.threads)
    gates = ((capacity, logits_gate(engine, peer, settings.context, 4)) for capacity, engine in engines.items())
    return tuple(replace(gate, checks=f"max_seq_len {capacity}: {gate.checks}") for capacity, gate in gates)


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(StepCostSettings(repeats=repeats)), REPEATS))
