"""Speed, memory and power of an engine, and of ONNX Runtime for comparison."""

from __future__ import annotations

import resource
from dataclasses import asdict
from typing import Any

from hardware.power import PowerMeter
from hardware.subject import CHECKED, REFERENCE, Found, Subject
from hybridge.runtime.benchmark import run_benchmark
from hybridge.runtime.engines.paged import PagedEngine

PROMPTS, NEW_TOKENS, ROWS = (512, 2048), 128, (1, 8)
REPETITIONS = {CHECKED: 5, REFERENCE: 1}


def measure(subject: Subject) -> Found:
    """Time to first token, time between tokens and tokens per second at 1 and 8 rows, and prompts of 512 and 2,048.

    Power is the mean over the decode steps of TensorRT. Lengths and rows are at most those of the engine.
    """
    found: Found = {}
    for name in (CHECKED, REFERENCE):
        with subject.opened(name, exact=False) as engine:
            found[name] = _measured(engine, REPETITIONS[name])
    return found


def _measured(engine: PagedEngine, repetitions: int) -> dict[str, Any]:
    room, most_rows = engine.config.max_seq_len, engine.limits.max_rows
    prompts = sorted({min(count, room - 1) for count in PROMPTS})
    new = min(NEW_TOKENS, room - 1)
    warmup = int(repetitions > 1)
    prefill = run_benchmark(engine, prompts, (), repetitions=repetitions, warmup=warmup).prefill
    decode: dict[str, Any] = {}
    for rows in sorted({min(count, most_rows) for count in ROWS}):
        with PowerMeter() as meter:
            (result,) = run_benchmark(engine, (), (new,), rows=rows, repetitions=repetitions, warmup=warmup).decode
        decode[f"b{rows}"] = {
            "tokens_per_second": result.tokens_per_second,
            "itl_s": asdict(result.time_per_token),
            "engine_share": result.engine_share,
            "power": meter.document(),
        }
    return {
        "prefill": {
            f"pp{p.prompt_tokens}": {"ttft_s": asdict(p.time_to_first_token), "tokens_per_second": p.tokens_per_second}
            for p in prefill
        },
        "decode": decode,
        "memory": {
            "used_bytes": dict(engine.memory_use()),
            "free_bytes": engine.free_memory(),
            "peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        },
    }
