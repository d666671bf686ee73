"""Seconds and memory of opening an artifact in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.artifacts import weight_bytes
from benchmarks.measure import Spread, run_measured

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


def opening(folder: Path, threads: int, repeats: int) -> dict[str, Any]:
    """Seconds to open the engine, and memory of its process divided by the weights' bytes.

    The peak includes memory that is freed again while sessions are created; "added" is the peak without what the
    process had after its imports.
    """
    weights = weight_bytes(folder)
    uses = [run_measured(("-c", _OPEN, str(folder), str(threads))) for _ in range(1 + repeats)][1:]
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
