"""Weights of 4, 8 and 16 bits on the CPU: speed, bytes and KL divergence, compared with llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.artifacts import DEMO_CHECKPOINT, work_folder
from benchmarks.divergences import artifact_logits, divergence, random_windows, scored, text_windows
from benchmarks.engine_runs import EngineRuns
from benchmarks.llama_cpp import LlamaCpp, missing_peer
from benchmarks.measure import Spread, note, spreads, take_turns
from benchmarks.opening import opening
from benchmarks.quantized_models import BF16, INT4, INT8, QuantizedModel, quantized_models
from benchmarks.random_checkpoint import (
    DECODE_MODEL,
    EXPORT_MODEL,
    LLAMA_MODEL,
    QWEN3_5_MODEL,
    Config,
    write_random_checkpoint,
)
from benchmarks.runner import Gate, Report, Target, chosen, require
from hybridge.artifact.config import read_config
from hybridge.evaluation.windows import first_scored
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine

MODELS: dict[str, Config] = {
    "nemotron-h-150M": DECODE_MODEL,
    "nemotron-h-850M": EXPORT_MODEL,
    "llama-135M": LLAMA_MODEL,
    "qwen3.5-280M": QWEN3_5_MODEL,
}
# Our formats and llama.cpp's.
PEERS = {BF16: "BF16", INT4: "Q4_K_M", INT8: "Q8_0"}
# Goals for decoding, times the peer: of a format, and of 4 bits by model.
DECODE_GOALS = {BF16: 0.9, INT8: 1.1}
DECODE_GOALS_4_BITS = {"nemotron-h-150M": 1.15, "nemotron-h-850M": 1.0}
OTHER_GOAL_4_BITS = 1.1
PROMPT_GOALS = {BF16: 1.0, INT4: 1.5, INT8: 1.5}
# Goals for opening the model of 850 M parameters, and for the peak of memory at it.
MOST_SECONDS, MOST_MEMORY = 1.0, 1.15
# Goal for 16 bits: seconds until a token, times the peer's.
MOST_TIMES_PEER = 1.2
# Goal for the peak of memory at opening other models.
MOST_MEMORY_OF_SMALL = 1.3
# The most that inputs rounded to 8 bits may change logits, relative to the change by rounding the weights.
ROUNDING_SHARES = {INT4: 0.25, INT8: 1.5}
# The most mean KL divergence of llama.cpp's BF16 file, in nats: it is the same model, with inputs in bfloat16.
SAME_MODEL = 2e-3
# Windows of random tokens: what models with random weights predict is alike everywhere.
RANDOM_WINDOWS = 2
# Smaller models stay in the processor's caches, and are not timed.
FEWEST_TIMED_BYTES = 10**8


@dataclass(frozen=True)
class QuantizedSettings:
    """Times a prompt of ``prefill_tokens``, and decoding ``new_tokens`` after ``prompt_tokens``.

    llama_cpp: a built checkout of llama.cpp; without one, the peer is left out. models and formats: names separated by
    commas. trained: folders of trained checkpoints, separated by commas; None: the demo checkpoint. KL divergences are
    measured over at most ``windows`` windows of ``window`` tokens of a text, or over RANDOM_WINDOWS. work: a folder
    that keeps the models.
    """

    llama_cpp: str | None = None
    models: str = ",".join(name for name in MODELS if name != "nemotron-h-850M")
    trained: str | None = None
    formats: str = ",".join(PEERS)
    prompt_tokens: int = 16
    new_tokens: int = 64
    prefill_tokens: int = 512
    windows: int = 8
    window: int = 512
    threads: int = 2
    repeats: int = 5
    work: str | None = None


def run(settings: QuantizedSettings) -> Report:
    """Quantise each model, check what rounded inputs change, and compare KL divergences and speeds with the peer's."""
    names = chosen("models", settings.models, MODELS) if settings.models else []
    formats = chosen("formats", settings.formats, PEERS)
    folders = (
        [DEMO_CHECKPOINT] if settings.trained is None else [Path(each) for each in settings.trained.split(",") if each]
    )
    trained = {folder.name: folder for folder in folders}
    reason = missing_peer(settings.llama_cpp)
    if reason is not None:
        note(f"llama.cpp is left out: {reason}")
    gates: list[Gate] = []
    results: dict[str, Any] = {}
    with work_folder(settings.work) as folder:
        for name in (*names, *trained):
            work = folder / name
            checkpoint = _checkpoint(work, name, trained.get(name))
            peer = None
            if reason is None:
                kinds = tuple(dict.fromkeys(PEERS[each] for each in (BF16, *formats)))
                peer = LlamaCpp(Path(str(settings.llama_cpp)), checkpoint, work, kinds, settings.threads)
            limits = {each: peer.bytes(PEERS[each]) for each in formats} if peer else {}
            models = quantized_models(work, checkpoint, formats, limits, name in trained)
            note(f"{name}: {', '.join(f'{each} {model.recipe}' for each, model in models.items())}")
            if name not in trained:  # the limits are those of random weights
                gates += require(*_gates(name, models, settings))
            gate, quality = _quality(name, models, peer, trained.get(name), settings)
            gates += require(*gate)
            results[name] = {"trained": name in trained, "quality": quality}
            if models[BF16].weight_bytes >= FEWEST_TIMED_BYTES:
                steps = {each: models[each].steps for each in formats}
                results[name]["opening"] = {
                    each: opening(path, settings.threads, settings.repeats, _first_token(peer, each))
                    for each, path in steps.items()
                }
                results[name] |= _speeds(steps, peer, settings)
    targets = (target for model, result in results.items() for target in _targets(result, model))
    return Report(tuple(gates), results, tuple(targets), {"peer": reason or "llama.cpp"})


def _checkpoint(work: Path, name: str, trained: Path | None) -> Path:
    """The checkpoint of the model; a random one is written where it is missing."""
    work.mkdir(parents=True, exist_ok=True)
    if trained is not None:
        return trained
    if not (work / "checkpoint").exists():
        write_random_checkpoint(work / "checkpoint", MODELS[name])
    return work / "checkpoint"


def _first_token(peer: LlamaCpp | None, name: str) -> Callable[[], float] | None:
    """Measures the peer's seconds until a token, with its format for ``name``."""
    return None if peer is None else partial(peer.first_token_seconds, PEERS[name])


def _engine(folder: Path, threads: int, exact: bool = False) -> DenseEngine:
    return create_dense_engine(folder, "onnxruntime", EngineOptions(threads, exact_products=exact))


def _gates(name: str, models: Mapping[str, QuantizedModel], settings: QuantizedSettings) -> Iterator[Gate]:
    """For each quantised format, logits of a prompt and of four more tokens, with rounded inputs and without."""
    unrounded = _logits(models[BF16].steps, settings)
    for form, model in models.items():
        if form != BF16:
            exact, rounded = (_logits(model.steps, settings, is_exact) for is_exact in (True, False))
            share = relative_error(rounded, exact) / relative_error(exact, unrounded)
            checks = f"{name}, {form}: change of logits by rounded inputs, relative to that by rounded weights"
            yield Gate(checks, share, ROUNDING_SHARES[form])


def _logits(folder: Path, settings: QuantizedSettings, exact: bool = False) -> np.ndarray:
    with closing(_engine(folder, settings.threads, exact)) as engine:
        runs = EngineRuns(engine)
        return np.stack(runs.logits(random_prompt(engine.config.vocab_size, 36, seed=1), 32, 1))


def _quality(
    name: str,
    models: Mapping[str, QuantizedModel],
    peer: LlamaCpp | None,
    trained: Path | None,
    settings: QuantizedSettings,
) -> tuple[list[Gate], dict[str, Any]]:
    """Bytes of the weights of each model and file, and KL divergences in nats from bf16 with unrounded inputs.

    The second half of each window is scored, as llama-perplexity does. Inputs are rounded as in what is timed.
    """
    if trained is None:
        windows = random_windows(read_config(models[BF16].steps).vocab_size, settings.window, RANDOM_WINDOWS)
    else:
        windows = text_windows(trained, settings.window, settings.windows)
    reference = list(artifact_logits(models[BF16].all_logits, windows, exact=True))
    gates: list[Gate] = []
    found: dict[str, Any] = {}
    for form, model in models.items():
        if form != BF16:
            score = divergence(reference, artifact_logits(model.all_logits, windows), windows)
            found[form] = scored(score, model.weight_bytes) | {"recipe": model.recipe}
    if peer is None:
        return gates, found
    for kind, file in peer.files.items():
        score = divergence(reference, peer.logits.of(file, windows, first_scored(settings.window)), windows)
        found[kind] = scored(score, peer.bytes(kind))
        if kind == PEERS[BF16]:
            gates.append(Gate(f"{name}: mean KL divergence of llama.cpp's {kind} from ours", score.mean, SAME_MODEL))
    return gates, found


def _speeds(folders: Mapping[str, Path], peer: LlamaCpp | None, settings: QuantizedSettings) -> dict[str, Any]:
    """Tokens per second of all, measured in turns, and our ratios to the peer's similar format."""
    new, prefill = settings.new_tokens, settings.prefill_tokens
    decode: dict[str, Callable[[], float]] = {}
    prompts: dict[str, Callable[[], float]] = {}
    results: dict[str, Any] = {}
    with ExitStack() as opened:
        for name, folder in folders.items():
            engine = opened.enter_context(closing(_engine(folder, settings.threads)))
            cast(OnnxRuntimeEngine, engine).weights.settle()
            runs, vocab = EngineRuns(engine), engine.config.vocab_size
            short, long = (random_prompt(vocab, count)[None] for count in (settings.prompt_tokens, prefill))
            decode[name] = partial(lambda runs, prompt: 1 / runs.step_seconds(prompt, new, True), runs, short)
            prompts[name] = partial(lambda runs, prompt: prefill / runs.prompt_seconds(prompt), runs, long)
        if peer is not None:
            for kind in (PEERS[name] for name in folders):
                decode[kind], prompts[kind] = partial(peer.speed, kind, 0, new), partial(peer.speed, kind, prefill, 0)
        for kind, contestants in (("decode", decode), ("prompt", prompts)):
            rates = take_turns(contestants, settings.repeats)
            results[f"{kind}_tokens_per_s"] = spreads(rates)
            if peer is not None:
                ratios = {name: Spread.of_ratios(rates[name], rates[PEERS[name]]) for name in folders}
                results[f"{kind}_times_llama_cpp"] = ratios
    return results


def _targets(result: Mapping[str, Any], model: str) -> Iterator[Target]:
    quality = result["quality"]
    for form, peer in PEERS.items():
        if form in quality and peer in quality:
            for key, what in (("weight_bytes", "bytes"), ("mean_kl", "mean KL"), ("kl_999", "99.9 % KL")):
                ratio = quality[form][key] / quality[peer][key]
                yield Target(f"{model}, {form}: {what}, times {peer}'s", ratio, "at most", 1.0, "x")
    for name, opened in result.get("opening", {}).items():
        if "decode_times_llama_cpp" in result:
            decode, prompt = (result[f"{kind}_times_llama_cpp"][name].median for kind in ("decode", "prompt"))
            goal = DECODE_GOALS.get(name, DECODE_GOALS_4_BITS.get(model, OTHER_GOAL_4_BITS))
            yield Target(f"{model}, {name}: decode, times {PEERS[name]}", decode, "at least", goal, "x")
            yield Target(f"{model}, {name}: prompt, times {PEERS[name]}", prompt, "at least", PROMPT_GOALS[name], "x")
        first = opened["first_token_seconds"]
        if "times_peer" in first and name == BF16:
            what = f"{model}, {name}: until the first token, times {PEERS[name]}"
            yield Target(what, first["times_peer"].median, "at most", MOST_TIMES_PEER, "x")
        if model == "nemotron-h-850M" and name != BF16:
            yield Target(f"{model}, {name}: opening", opened["seconds"].median, "at most", MOST_SECONDS, "s")
        most = MOST_MEMORY if name == BF16 or model == "nemotron-h-850M" else MOST_MEMORY_OF_SMALL
        peak = opened["peak_to_weights"].median
        yield Target(f"{model}, {name}: peak memory, times the weights", peak, "at most", most, "x")
