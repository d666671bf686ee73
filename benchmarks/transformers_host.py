"""``generate()`` of transformers over its own text model, and over the engines of ``hybridge.accelerate``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.artifacts import DELTA_CHECKPOINT, DEMO_CHECKPOINT, scratch_folder
from benchmarks.measure import Spread, seconds, spreads, take_turns
from benchmarks.runner import Gate, Report, Target, require
from hybridge import accelerate

PLAIN = "transformers"
# By device, the engines and the goals of their speed over the plain model's.
LEAST_RATIO = {"cpu": {"export": 2.0, "onnxruntime": 3.0}, "cuda": {"torch": 2.0}}


@dataclass(frozen=True)
class HostSettings:
    """``new`` tokens, one row, greedy, after ``prompt`` tokens; caches have room for ``max_cache_len``.

    device: "cuda" measures the engine torch, "cpu" the engines of a CPU. A prompt of one token avoids tracing what is
    not measured.
    """

    prompt: int = 1
    new: int = 64
    max_cache_len: int = 512
    threads: int = 2
    device: str = "cpu"
    repeats: int = 5


def run(settings: HostSettings) -> Report:
    """Check that all give the same tokens, then measure decoding per token on the checkpoints that ship."""
    torch.set_num_threads(settings.threads)
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    with scratch_folder() as folder, ExitStack() as stack:
        for checkpoint in (DEMO_CHECKPOINT, DELTA_CHECKPOINT):
            models = _models(checkpoint, folder, settings, stack)
            gates += _gates(checkpoint.name, models, settings)
            require(*gates)
            times = take_turns({name: _token_seconds(m, settings) for name, m in models.items()}, settings.repeats)
            results[checkpoint.name] = {"token_ms": spreads(times, 1e3)}
            for name, least in LEAST_RATIO[settings.device].items():
                ratio = Spread.of_ratios(times[PLAIN], times[name]).median
                targets.append(Target(f"{checkpoint.name}, {name} over transformers", ratio, "at least", least, "x"))
    return Report(tuple(gates), results, tuple(targets))


def _models(checkpoint: Path, folder: Path, settings: HostSettings, stack: ExitStack) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    models = {}
    for name in (PLAIN, *LEAST_RATIO[settings.device]):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().to(settings.device)
        if name != PLAIN:
            threads = settings.threads if name == "onnxruntime" else None
            limits = {"max_cache_len": settings.max_cache_len, "max_batch_size": 1}
            stack.enter_context(accelerate(model, name, cache_folder=folder, threads=threads, **limits))
        models[name] = model
    return models


def _gates(checkpoint: str, models: dict[str, Any], settings: HostSettings) -> list[Gate]:
    expected, *found = (_generate(model, settings, settings.new) for model in models.values())
    _, *names = models
    return [
        Gate(f"{checkpoint}: tokens of {name} that differ from transformers'", float((ids != expected).sum()), 0.0)
        for name, ids in zip(names, found, strict=True)
    ]


def _token_seconds(model: Any, settings: HostSettings) -> Callable[[], float]:
    """Seconds per decoded token: a long answer minus a short one, without the prompt and the start."""

    def generate(tokens: int) -> None:
        _generate(model, settings, tokens)
        if settings.device == "cuda":
            torch.cuda.synchronize()

    def call() -> float:
        return (seconds(partial(generate, settings.new + 1)) - seconds(partial(generate, 1))) / settings.new

    return call


def _generate(model: Any, settings: HostSettings, tokens: int) -> torch.Tensor:
    prompt = torch.arange(5, 5 + settings.prompt, device=settings.device)[None]
    return model.generate(prompt, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)
