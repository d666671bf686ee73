"""A decode step in large caches against one in small caches: its cost should depend on its tokens only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.agreement import logits_gate, random_prompt
from benchmarks.artifacts import DEMO_CHECKPOINT, exported, scratch_folder
from benchmarks.engine_runs import dense_inputs
from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.runner import Report, Target, require
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions

MOST_RATIO = 1.2


@dataclass(frozen=True)
class StepCostSettings:
    """Blocks of ``steps`` after ``context`` tokens, in caches with room for ``small`` or ``large`` tokens."""

    small: int = 256
    large: int = 8192
    context: int = 128
    steps: int = 16
    threads: int = 2
    repeats: int = 60


def run(settings: StepCostSettings) -> Report:
    """Export the checkpoint that ships twice and measure a step of each in turns, all of max_seq_len allocated."""
    engines: dict[int, DenseEngine] = {}
    with scratch_folder() as folder, ExitStack() as stack:
        for capacity in (settings.small, settings.large):
            artifact = exported(DEMO_CHECKPOINT, folder / str(capacity), max_batch_size=1, max_seq_len=capacity)
            engine = create_dense_engine(artifact, "onnxruntime", EngineOptions(settings.threads))
            engines[capacity] = stack.enter_context(closing(engine))
        peer = Peer(DEMO_CHECKPOINT, settings.threads)
        gates = require(
            *(logits_gate(f"max_seq_len {n}", engine, peer, settings.context, 4) for n, engine in engines.items())
        )
        steps = {str(capacity): _step_seconds(engine, settings) for capacity, engine in engines.items()}
        times = take_turns(steps, settings.repeats)
    ratio = Spread.of_ratios(times[str(settings.large)], times[str(settings.small)])
    title = f"step at {settings.context} tokens, max_seq_len {settings.large} over {settings.small}"
    target = Target(title, ratio.median, "at most", MOST_RATIO, "x")
    return Report(gates, {"step_us": spreads(times, 1e6), "ratio": ratio}, (target,))


def _step_seconds(engine: DenseEngine, settings: StepCostSettings) -> Callable[[], float]:
    """Median seconds of ``steps`` decode steps; every call goes back to ``context`` tokens."""
    context = settings.context
    tokens = random_prompt(engine.config.vocab_size, context + settings.steps)
    states = engine.allocate_states(1, engine.max_seq_len)

    def step(begin: int, end: int) -> None:
        engine.step(dense_inputs(tokens[None, begin:end], begin), states)

    step(0, context)
    return lambda: median(seconds(partial(step, at, at + 1)) for at in range(context, tokens.size))
