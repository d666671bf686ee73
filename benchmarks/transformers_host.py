"""``generate()`` of transformers over its own text model, and over the engines that accelerate puts under it.

--device cuda measures the engine torch on a GPU; the engines of a CPU are measured without it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.artifacts import DELTA_CHECKPOINT, DEMO_CHECKPOINT
from benchmarks.command import run_command
from benchmarks.measure import Spread, take_turns
from benchmarks.report import Gate, Report, Target
from hybridge import accelerate

NAME, REPEATS = "transformers_host", 5
PLAIN = "transformers"
# By device, the engines and how much faster than the plain model each is meant to be.
LEAST_RATIO = {"cpu": {"export": 2.0, "onnxruntime": 3.0}, "cuda": {"torch": 2.0}}


@dataclass(frozen=True)
class HostSettings:
    """``new`` tokens, one row, greedy, after ``prompt`` tokens; caches have room for ``max_cache_len``.

    One token of prompt spares tracing what is not measured.
    """

    prompt: int = 1
    new: int = 64
    max_cache_len: int = 512
    threads: int = 2
    device: str = "cpu"
    repeats: int = REPEATS

    @property
    def least_ratio(self) -> Mapping[str, float]:
        """The engines of the device, with their targets."""
        return LEAST_RATIO[self.device]


def run(settings: HostSettings) -> Report:
    """Check that all give the same tokens, then measure decoding per token on the checkpoints that ship."""
    torch.set_num_threads(settings.threads)
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as folder, ExitStack() as stack:
        for checkpoint in (DEMO_CHECKPOINT, DELTA_CHECKPOINT):
            models = _models(checkpoint, Path(folder), settings, stack)
            gates += _gates(checkpoint.name, models, settings)
            if not all(gate.passed for gate in gates):
                return Report(NAME, asdict(settings), tuple(gates))
            times = take_turns({name: _timed(model, settings) for name, model in models.items()}, settings.repeats)
            results[checkpoint.name] = {
                "token_ms": {
                    name: Spread.of(1e3 * value for value in values).to_json() for name, values in times.items()
                },
            }
            if "export" in models:
                results[checkpoint.name]["article_cache_ms"] = _article_cache_ms(models["export"], settings)
            for name, least in settings.least_ratio.items():
                ratio = Spread.of_ratios(times[PLAIN], times[name]).median
                targets.append(Target(f"{checkpoint.name}, {name} over transformers", ratio, "at least", least, "x"))
    return Report(NAME, asdict(settings), tuple(gates), results, tuple(targets))


def _models(checkpoint: Path, folder: Path, settings: HostSettings, stack: ExitStack) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    models = {}
    for name in (PLAIN, *settings.least_ratio):
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval().to(settings.device)
        if name != PLAIN:
            threads = settings.threads if name == "onnxruntime" else None
            limits = {"max_cache_len": settings.max_cache_len, "max_batch_size": 1}
            stack.enter_context(accelerate(model, name, cache_folder=folder, threads=threads, **limits))
        models[name] = model
    return models


def _gates(checkpoint: str, models: dict[str, Any], settings: HostSettings) -> list[Gate]:
    expected = _generate(models[PLAIN], settings, settings.new)
    return [
        Gate(
            f"{checkpoint}: tokens of {name} that differ from transformers'",
            float((_generate(models[name], settings, settings.new) != expected).sum()),
            0.0,
        )
        for name in settings.least_ratio
    ]


def _timed(model: Any, settings: HostSettings) -> Callable[[], float]:
    """Seconds per decoded token: a long answer without a short one, so that the prompt and the start drop out."""

    def seconds(tokens: int) -> float:
        started = time.perf_counter()
        _generate(model, settings, tokens)
        if settings.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return lambda: (seconds(settings.new + 1) - seconds(1)) / settings.new


def _generate(model: Any, settings: HostSettings, tokens: int) -> torch.Tensor:
    prompt = torch.arange(5, 5 + settings.prompt, device=settings.device)[None]
    return model.generate(prompt, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)


def _article_cache_ms(model: Any, settings: HostSettings) -> float:
    """What building all cache tensors anew would add to each step: zeros of every state, as the article does."""
    backend = model.base_model.backend
    started = time.perf_counter()
    for _ in range(settings.new):
        kept = backend.allocate(1)
        for fresh, old in zip(kept.tensors(), backend.empty.tensors(), strict=True):
            fresh.copy_(old)
    return 1e3 * (time.perf_counter() - started) / settings.new


def main() -> int:
    """The exit code: 0, or 1 when a gate failed."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=sorted(LEAST_RATIO), default="cpu")
    known, rest = parser.parse_known_args()
    settings = HostSettings(device=known.device)
    return run_command(str(__doc__), lambda repeats: run(replace(settings, repeats=repeats)), REPEATS, rest)


if __name__ == "__main__":
    sys.exit(main())
