"""Decoding and prompts in float32 on the CPU, compared with transformers and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.agreement import logits_gate, random_prompt
from benchmarks.artifacts import DEMO_CHECKPOINT, exported, scratch_folder
from benchmarks.engine_runs import EngineRuns
from benchmarks.llama_cpp import LlamaCpp, can_convert, missing_peer
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import (
    DECODE_MODEL,
    FALCON_H1_MODEL,
    LFM2_MODEL,
    LLAMA_MODEL,
    MAMBA_MODEL,
    QWEN3_5_MODEL,
    Config,
    write_random_checkpoint,
)
from benchmarks.runner import Gate, Report, Target, chosen, require
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions

# Random weights of these configs, or a trained checkpoint.
MODELS: dict[str, Config | Path] = {
    "mamba": MAMBA_MODEL,
    "lfm2": LFM2_MODEL,
    "falcon_h1": FALCON_H1_MODEL,
    "nemotron-h-150M": DECODE_MODEL,
    "llama-135M": LLAMA_MODEL,
    "qwen3.5-280M": QWEN3_5_MODEL,
    "tiny-nemotron-h": DEMO_CHECKPOINT,
}
OURS, TRANSFORMERS, LLAMA_CPP = "ours", "transformers", "llama.cpp"
# Ratios of decoding speeds; times transformers for the families of HYBRID_FAMILIES only.
GOALS = {TRANSFORMERS: 3.0, LLAMA_CPP: 1.0}
HYBRID_FAMILIES = ("mamba", "lfm2", "falcon_h1")
_FLOAT32 = "F32"
_GATE_STEPS = 4


@dataclass(frozen=True)
class HybridSettings:
    """Times a prompt of ``prefill_tokens``, and decoding ``new_tokens`` after ``prompt_tokens``.

    llama_cpp: a built checkout of llama.cpp; without one, and for Mamba, this peer is left out. models: names separated
    by commas.
    """

    llama_cpp: str | None = None
    models: str = ",".join(MODELS)
    prompt_tokens: int = 16
    new_tokens: int = 64
    prefill_tokens: int = 512
    threads: int = 2
    repeats: int = 5


def run(settings: HybridSettings) -> Report:
    """Compare logits of each model with transformers, and time all in turns."""
    names = chosen("models", settings.models, MODELS)
    reason = missing_peer(settings.llama_cpp)
    if reason is not None:
        note(f"llama.cpp is left out: {reason}")
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    for name in names:
        with scratch_folder() as work:
            checkpoint = _checkpoint(MODELS[name], work)
            artifact = exported(checkpoint, work / "artifact", max_batch_size=1)
            with closing(create_dense_engine(artifact, "onnxruntime", EngineOptions(settings.threads))) as engine:
                peer = Peer(checkpoint, settings.threads)
                gates += require(logits_gate(name, engine, peer, settings.prefill_tokens, _GATE_STEPS))
                native = None
                if reason is None and can_convert(checkpoint):
                    folder = Path(str(settings.llama_cpp))
                    native = LlamaCpp(folder, checkpoint, work, (_FLOAT32,), settings.threads)
                results[name] = _speeds(engine, peer, native, settings)
            peer.close()
    targets = (target for name, result in results.items() for target in _targets(name, result))
    return Report(tuple(gates), results, tuple(targets), {"peer": reason or LLAMA_CPP})


def _checkpoint(model: Config | Path, work: Path) -> Path:
    """The folder of the trained checkpoint, or a new one in ``work`` with random weights."""
    if isinstance(model, Path):
        return model
    write_random_checkpoint(work / "checkpoint", model)
    return work / "checkpoint"


def _speeds(engine: DenseEngine, peer: Peer, native: LlamaCpp | None, settings: HybridSettings) -> dict[str, Any]:
    """Tokens per second of all, measured in turns, and our ratios to the peers."""
    new, prefill = settings.new_tokens, settings.prefill_tokens
    runs = EngineRuns(engine)
    short, long = (random_prompt(runs.vocab_size, count)[None] for count in (settings.prompt_tokens, prefill))
    decode: dict[str, Callable[[], float]] = {
        OURS: lambda: 1 / runs.step_seconds(short, new, True),
        TRANSFORMERS: lambda: 1 / peer.step_seconds(short, new),
    }
    prompt: dict[str, Callable[[], float]] = {
        OURS: lambda: prefill / runs.prompt_seconds(long),
        TRANSFORMERS: lambda: prefill / peer.prefill_seconds(long),
    }
    if native is not None:
        decode[LLAMA_CPP] = partial(native.speed, _FLOAT32, 0, new)
        prompt[LLAMA_CPP] = partial(native.speed, _FLOAT32, prefill, 0)
    results: dict[str, Any] = {}
    for kind, contestants in (("decode", decode), ("prompt", prompt)):
        rates = take_turns(contestants, settings.repeats)
        results[f"{kind}_tokens_per_s"] = spreads(rates)
        results[f"{kind}_ratios"] = {
            other: Spread.of_ratios(rates[OURS], rates[other]) for other in contestants if other != OURS
        }
    return results


def _targets(model: str, result: Mapping[str, Any]) -> Iterator[Target]:
    for other, ratio in result["decode_ratios"].items():
        if other == TRANSFORMERS and model not in HYBRID_FAMILIES:
            continue
        yield Target(f"{model}: decode, times {other}", ratio.median, "at least", GOALS[other], "x")
