"""Decoding and prompts with weights of 4, 8 and 16 bits on the CPU, compared with llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.artifacts import exported, scratch_folder
from benchmarks.engine_runs import EngineRuns
from benchmarks.llama_cpp import LlamaCpp, missing_peer
from benchmarks.measure import Spread, note, run_measured, spreads, take_turns
from benchmarks.random_checkpoint import (
    DECODE_MODEL,
    EXPORT_MODEL,
    LLAMA_MODEL,
    QWEN3_5_MODEL,
    Config,
    write_random_checkpoint,
)
from benchmarks.runner import Gate, Report, Target, chosen, require
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.quantizer import quantize_checkpoint
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions

MODELS: dict[str, Config] = {
    "nemotron-h-150M": DECODE_MODEL,
    "nemotron-h-850M": EXPORT_MODEL,
    "llama-135M": LLAMA_MODEL,
    "qwen3.5-280M": QWEN3_5_MODEL,
}
BF16, INT4, INT8 = "bf16", "int4", "int8"
# Our formats and llama.cpp's.
PEERS = {BF16: "BF16", INT4: "Q4_K_M", INT8: "Q8_0"}
# Goals for decoding, times the peer: of a format, and of 4 bits by model.
DECODE_GOALS = {BF16: 0.9, INT8: 1.1}
DECODE_GOALS_4_BITS = {"nemotron-h-150M": 1.15, "nemotron-h-850M": 1.0, "llama-135M": 1.1, "qwen3.5-280M": 1.1}
PROMPT_GOALS = {BF16: 1.0, INT4: 1.5, INT8: 1.5}
# Goals for opening the model of 850 M parameters, and for the peak of memory at it.
MOST_SECONDS, MOST_MEMORY = 1.0, 1.15
# The most that inputs rounded to 8 bits may change logits, relative to the change by rounding the weights.
ROUNDING_SHARES = {INT4: 0.25, INT8: 1.5}
_OPEN = """
import json, sys, time
from hybridge.runtime.engines.factory import EngineOptions, create_dense_engine
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
def resident():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])
imports, started = resident(), time.perf_counter()
engine = create_dense_engine(sys.argv[1], "onnxruntime", EngineOptions(int(sys.argv[2])))
seconds = time.perf_counter() - started
print(json.dumps([seconds, resident(), imports]))
"""


@dataclass(frozen=True)
class QuantizedSettings:
    """Times a prompt of ``prefill_tokens``, and decoding ``new_tokens`` after ``prompt_tokens``.

    llama_cpp: a built checkout of llama.cpp; without one, the peer is left out. models and formats: names separated by
    commas.
    """

    llama_cpp: str | None = None
    models: str = ",".join(name for name in MODELS if name != "nemotron-h-850M")
    formats: str = ",".join(PEERS)
    prompt_tokens: int = 16
    new_tokens: int = 64
    prefill_tokens: int = 512
    threads: int = 2
    repeats: int = 5


def run(settings: QuantizedSettings) -> Report:
    """Quantise a random checkpoint of each model, check the error of rounded inputs, and time all in turns."""
    models = chosen("models", settings.models, MODELS)
    formats = chosen("formats", settings.formats, PEERS)
    reason = missing_peer(settings.llama_cpp)
    if reason is not None:
        note(f"llama.cpp is left out: {reason}")
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    for model in models:
        with scratch_folder() as work:
            folders = _artifacts(work, MODELS[model], formats)
            gates += require(*_gates(model, folders, settings))
            results[model] = {"opening": {name: _opening(folders[name], settings) for name in formats}}
            peer = None
            if reason is None:
                kinds = tuple(dict.fromkeys(PEERS[name] for name in formats))
                peer = LlamaCpp(Path(str(settings.llama_cpp)), work / "checkpoint", work, kinds, settings.threads)
            timed = {name: folders[name] for name in formats}
            results[model] |= _speeds(timed, peer, settings)
    targets = (target for model, result in results.items() for target in _targets(result, model))
    return Report(tuple(gates), results, tuple(targets), {"peer": reason or "llama.cpp"})


def _artifacts(work: Path, config: Config, formats: Sequence[str]) -> dict[str, Path]:
    """The artifacts of bf16 and of ``formats``, of a new checkpoint with random weights at ``work``/checkpoint."""
    write_random_checkpoint(work / "checkpoint", config)
    folders = {}
    for name in dict.fromkeys((BF16, *formats)):
        source = work / "checkpoint"
        if name != BF16:
            source = work / f"{name}-checkpoint"
            quantize_checkpoint(work / "checkpoint", source, QuantizeOptions(format=name, method="rtn"))
        folders[name] = exported(source, work / name, max_batch_size=1)
    return folders


def _engine(folder: Path, threads: int, exact: bool = False) -> DenseEngine:
    return create_dense_engine(folder, "onnxruntime", EngineOptions(threads, exact_products=exact))


def _gates(model: str, folders: Mapping[str, Path], settings: QuantizedSettings) -> Iterator[Gate]:
    """For each quantised format, logits of a prompt and of four more tokens, with rounded inputs and without."""
    unrounded = _logits(folders[BF16], settings)
    for name, folder in folders.items():
        if name != BF16:
            exact, rounded = (_logits(folder, settings, is_exact) for is_exact in (True, False))
            share = relative_error(rounded, exact) / relative_error(exact, unrounded)
            checks = f"{model}, {name}: change of logits by rounded inputs, relative to that by rounded weights"
            yield Gate(checks, share, ROUNDING_SHARES[name])


def _logits(folder: Path, settings: QuantizedSettings, exact: bool = False) -> np.ndarray:
    with closing(_engine(folder, settings.threads, exact)) as engine:
        runs = EngineRuns(engine)
        return np.stack(runs.logits(random_prompt(engine.config.vocab_size, 36, seed=1), 32, 1))


def _opening(folder: Path, settings: QuantizedSettings) -> dict[str, Any]:
    """Seconds to open the engine, and memory of its process divided by the weights' bytes.

    The peak includes memory that is freed again while sessions are created; "added" is the peak without what the
    process had after its imports.
    """
    weights = sum(file.stat().st_size for file in (folder / "weights").iterdir())
    uses = [run_measured(("-c", _OPEN, str(folder), str(settings.threads))) for _ in range(1 + settings.repeats)][1:]
    found = [json.loads(use.output) for use in uses]
    return {
        "seconds": Spread.of(seconds for seconds, *_ in found),
        "import_bytes": Spread.of(imports for *_, imports in found),
        "resident_to_weights": Spread.of(resident / weights for _, resident, _ in found),
        "peak_to_weights": Spread.of(use.peak_rss / weights for use in uses),
        "added_to_weights": Spread.of(
            (use.peak_rss - imports) / weights for use, (*_, imports) in zip(uses, found, strict=True)
        ),
        "weight_bytes": weights,
    }


def _speeds(folders: Mapping[str, Path], peer: LlamaCpp | None, settings: QuantizedSettings) -> dict[str, Any]:
    """Tokens per second of all, measured in turns, and our ratios to the peer's similar format."""
    new, prefill = settings.new_tokens, settings.prefill_tokens
    decode: dict[str, Callable[[], float]] = {}
    prompts: dict[str, Callable[[], float]] = {}
    results: dict[str, Any] = {}
    with ExitStack() as opened:
        for name, folder in folders.items():
            engine = opened.enter_context(closing(_engine(folder, settings.threads)))
            runs, vocab = EngineRuns(engine), engine.config.vocab_size
            short, long = (random_prompt(vocab, count)[None] for count in (settings.prompt_tokens, prefill))
            decode[name] = partial(lambda runs, prompt: 1 / runs.step_seconds(prompt, new, True), runs, short)
            prompts[name] = partial(lambda runs, prompt: prefill / runs.prompt_seconds(prompt), runs, long)
        if peer is not None:
            for kind in peer.files:
                decode[kind], prompts[kind] = partial(peer.speed, kind, 0, new), partial(peer.speed, kind, prefill, 0)
        for kind, contestants in (("decode", decode), ("prompt", prompts)):
            rates = take_turns(contestants, settings.repeats)
            results[f"{kind}_tokens_per_s"] = spreads(rates)
            if peer is not None:
                ratios = {name: Spread.of_ratios(rates[name], rates[PEERS[name]]) for name in folders}
                results[f"{kind}_times_llama_cpp"] = ratios
    return results


def _targets(result: Mapping[str, Any], model: str) -> Iterator[Target]:
    for name, opening in result["opening"].items():
        if "decode_times_llama_cpp" in result:
            decode, prompt = (result[f"{kind}_times_llama_cpp"][name].median for kind in ("decode", "prompt"))
            goal = DECODE_GOALS.get(name, DECODE_GOALS_4_BITS.get(model, 1.0))
            yield Target(f"{model}, {name}: decode, times {PEERS[name]}", decode, "at least", goal, "x")
            yield Target(f"{model}, {name}: prompt, times {PEERS[name]}", prompt, "at least", PROMPT_GOALS[name], "x")
        if model == "nemotron-h-850M" and name != BF16:
            yield Target(f"{model}, {name}: opening", opening["seconds"].median, "at most", MOST_SECONDS, "s")
        peak = opening["peak_to_weights"].median
        yield Target(f"{model}, {name}: peak memory, times the weights", peak, "at most", MOST_MEMORY, "x")
