"""Decoding and prompts with 4-bit and 8-bit weights on the CPU, compared with llama.cpp and with our float32."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.agreement import error_gate, random_prompt
from benchmarks.artifacts import exported, scratch_folder
from benchmarks.engine_runs import EngineRuns
from benchmarks.llama_cpp import LlamaCpp, missing_peer
from benchmarks.measure import Spread, note, run_measured, spreads, take_turns
from benchmarks.random_checkpoint import DECODE_MODEL, EXPORT_MODEL, write_random_checkpoint
from benchmarks.runner import Gate, Report, Target, require
from hybridge.artifact.errors import SettingError
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.quantizer import quantize_checkpoint
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions

MODELS = {"150M": DECODE_MODEL, "850M": EXPORT_MODEL}
# Our formats and llama.cpp's; goals for the ratio of decoding speeds, by format and model.
PEERS = {"int4": "Q4_K_M", "int8": "Q8_0"}
DECODE_GOALS = {("int4", "150M"): 1.15, ("int4", "850M"): 1.0, ("int8", "150M"): 1.1, ("int8", "850M"): 1.1}
PROMPT_GOAL, MOST_SECONDS, MOST_MEMORY = 1.5, 1.0, 1.15
# Error of logits with inputs rounded to 8 bits, relative to those with exact products.
ROUNDING_TOLERANCE = 0.05
_OPEN = """
import json, resource, sys, time
from hybridge.runtime.engines.factory import EngineOptions, create_dense_engine
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
started = time.perf_counter()
engine = create_dense_engine(sys.argv[1], "onnxruntime", EngineOptions(int(sys.argv[2])))
seconds = time.perf_counter() - started
resident = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
print(json.dumps([seconds, 1024 * int(resident[0].split()[1])]))
"""


@dataclass(frozen=True)
class QuantizedSettings:
    """Times a prompt of ``prefill_tokens``, and decoding ``new_tokens`` after ``prompt_tokens``.

    llama_cpp: a built checkout of llama.cpp; without one, the peer is left out. model: 150M or 850M.
    """

    llama_cpp: str | None = None
    model: str = "150M"
    prompt_tokens: int = 16
    new_tokens: int = 64
    prefill_tokens: int = 512
    threads: int = 2
    repeats: int = 5


def run(settings: QuantizedSettings) -> Report:
    """Quantise a random checkpoint to both formats, check the error of rounded inputs, and time all in turns."""
    if settings.model not in MODELS:
        raise SettingError(f"model: expected one of {', '.join(MODELS)}, found {settings.model!r}: choose one of these")
    reason = missing_peer(settings.llama_cpp)
    if reason is not None:
        note(f"llama.cpp is left out: {reason}")
    with scratch_folder() as work, ExitStack() as opened:
        checkpoint = work / "checkpoint"
        write_random_checkpoint(checkpoint, MODELS[settings.model])
        folders = {"float32": exported(checkpoint, work / "float32", max_batch_size=1)}
        for name in PEERS:
            quantize_checkpoint(checkpoint, work / f"{name}-checkpoint", QuantizeOptions(format=name, method="rtn"))
            folders[name] = exported(work / f"{name}-checkpoint", work / name, max_batch_size=1)
        gates = require(*(_gate(name, folders[name], settings) for name in PEERS))
        opening = {name: _opening(folders[name], settings) for name in PEERS}
        engines = {
            name: opened.enter_context(closing(_engine(folder, settings.threads))) for name, folder in folders.items()
        }
        peer = None
        if reason is None:
            peer = LlamaCpp(Path(str(settings.llama_cpp)), checkpoint, work, tuple(PEERS.values()), settings.threads)
        results = _speeds(engines, peer, settings)
    results["opening"] = opening
    described = {"model": settings.model, "peer": reason or "llama.cpp"}
    return Report(gates, results, tuple(_targets(results, settings.model)), described)


def _engine(folder: Path, threads: int, exact: bool = False) -> DenseEngine:
    return create_dense_engine(folder, "onnxruntime", EngineOptions(threads, exact_products=exact))


def _gate(name: str, folder: Path, settings: QuantizedSettings) -> Gate:
    """Logits of a prompt and of four more tokens, with rounded inputs against exact products."""
    found = []
    for is_exact in (False, True):
        with closing(_engine(folder, settings.threads, is_exact)) as engine:
            sequence = random_prompt(engine.config.vocab_size, 36, seed=1)
            found.append(EngineRuns(engine).logits(sequence, 32, 1))
    rounded, exact = found
    return error_gate(f"{name}: logits with rounded inputs against exact products", rounded, exact, ROUNDING_TOLERANCE)


def _opening(folder: Path, settings: QuantizedSettings) -> dict[str, Any]:
    """Seconds to open the engine, and memory of its process divided by the weights' bytes.

    The peak includes memory that is freed again while sessions are created.
    """
    weights = sum(file.stat().st_size for file in (folder / "weights").iterdir())
    uses = [run_measured(("-c", _OPEN, str(folder), str(settings.threads))) for _ in range(1 + settings.repeats)][1:]
    found = [json.loads(use.output) for use in uses]
    return {
        "seconds": Spread.of(seconds for seconds, _ in found),
        "resident_to_weights": Spread.of(resident / weights for _, resident in found),
        "peak_to_weights": Spread.of(use.peak_rss / weights for use in uses),
        "weight_bytes": weights,
    }


def _speeds(engines: dict[str, DenseEngine], peer: LlamaCpp | None, settings: QuantizedSettings) -> dict[str, Any]:
    """Tokens per second of all, measured in turns, and our ratios to float32 and to the peer's similar format."""
    new, prefill = settings.new_tokens, settings.prefill_tokens
    decode: dict[str, Callable[[], float]] = {}
    prompts: dict[str, Callable[[], float]] = {}
    for name, engine in engines.items():
        vocab = engine.config.vocab_size
        runs = EngineRuns(engine)
        short, long = (random_prompt(vocab, count)[None] for count in (settings.prompt_tokens, prefill))
        decode[name] = partial(lambda runs, prompt: 1 / runs.step_seconds(prompt, new, True), runs, short)
        prompts[name] = partial(lambda runs, prompt: prefill / runs.prompt_seconds(prompt), runs, long)
    for name in peer.files if peer is not None else ():
        assert peer is not None
        decode[name], prompts[name] = partial(peer.speed, name, 0, new), partial(peer.speed, name, prefill, 0)
    results: dict[str, Any] = {}
    for kind, contestants in (("decode", decode), ("prompt", prompts)):
        rates = take_turns(contestants, settings.repeats)
        results[f"{kind}_tokens_per_s"] = spreads(rates)
        results[f"{kind}_times_float32"] = {name: Spread.of_ratios(rates[name], rates["float32"]) for name in PEERS}
        if peer is not None:
            ratios = {name: Spread.of_ratios(rates[name], rates[other]) for name, other in PEERS.items()}
            results[f"{kind}_times_llama_cpp"] = ratios
    return results


def _targets(results: dict[str, Any], model: str) -> Iterator[Target]:
    for name, other in PEERS.items():
        if "decode_times_llama_cpp" in results:
            decode, prompt = (results[f"{kind}_times_llama_cpp"][name].median for kind in ("decode", "prompt"))
            yield Target(f"{name}: decode, times {other}", decode, "at least", DECODE_GOALS[name, model], "x")
            yield Target(f"{name}: prompts, times {other}", prompt, "at least", PROMPT_GOAL, "x")
        opening = results["opening"][name]
        peak = opening["peak_to_weights"].median
        yield Target(f"{name}: opening", opening["seconds"].median, "at most", MOST_SECONDS, "s")
        yield Target(f"{name}: peak memory of opening, times the weights", peak, "at most", MOST_MEMORY, "x")
