"""generate() of transformers with and without an engine of hybridge.accelerate, on the demo checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.agreement import random_prompt, tokens_gate
from benchmarks.artifacts import DELTA_CHECKPOINT, DEMO_CHECKPOINT, scratch_folder
from benchmarks.measure import Spread, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.runner import Gate, Report, Target, chosen, require
from hybridge.verification.torch_functions import torch_functions

CHECKPOINTS = {folder.name: folder for folder in (DEMO_CHECKPOINT, DELTA_CHECKPOINT)}
PLAIN = "transformers"
# Speed of the fastest engine, times transformers.
GOAL = 2.0


@dataclass(frozen=True)
class AcceleratedSettings:
    """``new_tokens`` greedy tokens of one row after ``prompt_tokens``.

    device: "cpu" or "cuda". engines: names separated by commas; None: those of the device.
    """

    device: str = "cpu"
    engines: str | None = None
    prompt_tokens: int = 16
    new_tokens: int = 64
    max_cache_len: int = 512
    threads: int = 2
    repeats: int = 5


def run(settings: AcceleratedSettings) -> Report:
    """Compare the tokens of each engine with those of transformers, then time all in turns.

    transformers computes with its own functions, whatever packages are installed.
    """
    from hybridge.transformers_host.accelerate import ENGINES

    default = "torch" if settings.device == "cuda" else "export,onnxruntime"
    engines = chosen("engines", settings.engines or default, ENGINES)
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    for model, checkpoint in CHECKPOINTS.items():
        with scratch_folder() as cache, ExitStack() as stack:
            # causal_conv1d takes only rows whose length is a multiple of 8; those of the first model are 1,036 numbers.
            stack.enter_context(torch_functions())
            peers = {name: Peer(checkpoint, settings.threads, device=settings.device) for name in (PLAIN, *engines)}
            options = {"max_cache_len": settings.max_cache_len, "cache_folder": cache, "threads": settings.threads}
            for name in engines:
                stack.enter_context(peers[name].accelerated(name, **options))
            prompt = random_prompt(peers[PLAIN].vocab_size, settings.prompt_tokens)
            expected = peers[PLAIN].generate(prompt, settings.new_tokens)
            gates += require(
                *(
                    tokens_gate(f"{model}, {name}", peers[name].generate(prompt, settings.new_tokens), expected)
                    for name in engines
                )
            )
            turns = {
                name: partial(peer.generate_seconds, prompt[None], settings.new_tokens) for name, peer in peers.items()
            }
            times = take_turns(turns, settings.repeats)
        ratios = {name: Spread.of_ratios(times[PLAIN], times[name]) for name in engines}
        results[model] = {"token_ms": spreads(times, 1e3 / settings.new_tokens), "speed_up": ratios}
        fastest = max(ratio.median for ratio in ratios.values())
        targets.append(Target(f"{model}: the fastest engine, times transformers", fastest, "at least", GOAL, "x"))
    return Report(tuple(gates), results, tuple(targets))
