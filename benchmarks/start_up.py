"""Cold start of ``hybridge run``: processor and wall time of a process that writes 80 tokens of the demo checkpoint.

Files and rewritten graphs are in the caches, as they are from the second run on. The text must be that of a call
from Python.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import hybridge
from benchmarks.command import run_command
from benchmarks.machine import ROOT
from benchmarks.measure import Spread
from benchmarks.measured_process import ProcessUse, run_measured
from benchmarks.report import Gate, Report, Target

NAME, REPEATS = "start_up", 7
CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
PROMPT, NEW_TOKENS = "The President of the United States", 80
MOST_CPU_SECONDS = 0.8


def run(repeats: int) -> Report:
    """Run the command ``repeats`` times for each layout, after one run that fills the caches."""
    results, gates = {}, []
    for layout in ("dense", "paged"):
        with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
            out = Path(name) / "out"
            hybridge.export(CHECKPOINT, out, layout=layout)
            with hybridge.LLM(out) as llm:
                expected = llm.generate(PROMPT, max_new_tokens=NEW_TOKENS).text
            uses = [_run(out) for _ in range(1 + repeats)][1:]
        different = sum(use.output.rstrip("\n") != expected.rstrip("\n") for use in uses)
        gates.append(Gate(f"{layout}: runs that write another text than LLM.generate", different, 0))
        results[layout] = _json(uses)
    target = Target(
        "hybridge run, processor time", results["dense"]["cpu_s"]["median"], "at most", MOST_CPU_SECONDS, "s"
    )
    described = {"checkpoint": CHECKPOINT.name, "new_tokens": NEW_TOKENS, "dtype": "bfloat16", "caches": "warm"}
    return Report(NAME, described, tuple(gates), results, (target,))


def _run(out: Path) -> ProcessUse:
    options = ("--prompt", PROMPT, "--max-new-tokens", str(NEW_TOKENS), "--quiet")
    return run_measured(("-m", "hybridge", "run", str(out), *options))


def _json(uses: list[ProcessUse]) -> dict[str, Any]:
    return {
        "wall_s": Spread.of(use.wall_s for use in uses).to_json(),
        "cpu_s": Spread.of(use.cpu_s for use in uses).to_json(),
        "peak_rss_bytes": Spread.of(use.peak_rss for use in uses).to_json(),
    }


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", run, REPEATS))
