"""Seconds and memory of opening an artifact and of its first token, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.artifacts import weight_bytes
from benchmarks.measure import Spread, run_measured

_OPEN = """
import json, sys, time
import numpy as np
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.factory import EngineOptions, create_dense_engine
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
def resident():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])
imports, started = resident(), time.perf_counter()
engine = create_dense_engine(sys.argv[1], "onnxruntime", EngineOptions(int(sys.argv[2])))
seconds, opened = time.perf_counter() - started, resident()
states, one = engine.allocate_states(1, 512), np.ones(1, np.int32)
engine.step(StepInputs(np.ones((1, 1), np.int64), one, 0 * one), states)
until_token = time.perf_counter() - started
engine.weights.settle()
print(json.dumps([seconds, until_token, opened, imports]))
"""


def opening(folder: Path, threads: int, repeats: int, peer: Callable[[], float] | None) -> dict[str, Any]:
    """Seconds to open the engine, and until it has decoded a token; memory divided by the weights' bytes.

    The peak includes memory that is freed again while sessions are created or weights are moved to huge pages;
    "added" is the peak without what the process had after its imports. peer: the peer's seconds until it has decoded a
    token, measured in turns.
    """
    weights = weight_bytes(folder)
    uses, peers = [], []
    for _ in range(1 + repeats):
        uses.append(run_measured(("-c", _OPEN, str(folder), str(threads))))
        peers.append(peer() if peer is not None else 0.0)
    uses, peers = uses[1:], peers[1:]
    found = [json.loads(use.output) for use in uses]
    tokens = [until_token for _, until_token, *_ in found]
    compared = {} if peer is None else {"peer": Spread.of(peers), "times_peer": Spread.of_ratios(tokens, peers)}
    return {
        "seconds": Spread.of(seconds for seconds, *_ in found),
        "first_token_seconds": {"ours": Spread.of(tokens), **compared},
        "import_bytes": Spread.of(imports for *_, imports in found),
        "resident_to_weights": Spread.of(resident / weights for *_, resident, _ in found),
        "peak_to_weights": Spread.of(use.peak_rss / weights for use in uses),
        "added_to_weights": Spread.of(
            (use.peak_rss - imports) / weights for use, (*_, imports) in zip(uses, found, strict=True)
        ),
        "weight_bytes": weights,
    }
