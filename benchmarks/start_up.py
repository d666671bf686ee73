"""Cold start of ``hybridge run``: processor and wall time of a process that writes 80 tokens of the demo checkpoint.

Files and rewritten graphs are in the caches, as they are from the second run on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hybridge
from benchmarks.artifacts import DEMO_CHECKPOINT, scratch_folder
from benchmarks.measure import ProcessUse, run_measured, use_spreads
from benchmarks.runner import Gate, Report, Target, require

PROMPT = "The President of the United States"
MOST_CPU_SECONDS = 0.8
MOST_SECONDS = 0.515  # on an AMD EPYC, where a command of llama.cpp takes 0.33 for one token


@dataclass(frozen=True)
class StartUpSettings:
    """``new_tokens`` after a short prompt."""

    new_tokens: int = 80
    repeats: int = 7


def run(settings: StartUpSettings) -> Report:
    """Run the command for each layout, after one run that fills the caches; the text must be that of LLM.generate."""
    results: dict[str, Any] = {}
    gates = []
    for layout in ("dense", "paged"):
        with scratch_folder() as folder:
            out = folder / "out"
            hybridge.export(DEMO_CHECKPOINT, out, layout=layout)
            with hybridge.LLM(out) as llm:
                expected = llm.generate(PROMPT, max_new_tokens=settings.new_tokens).text
            uses = [_run(out, settings) for _ in range(1 + settings.repeats)][1:]
        different = sum(use.output.rstrip("\n") != expected.rstrip("\n") for use in uses)
        gates.append(Gate(f"{layout}: runs that write another text than LLM.generate", float(different), 0.0))
        results[layout] = use_spreads(uses)
    processor, wall = results["dense"]["cpu_s"].median, results["dense"]["wall_s"].median
    targets = (
        Target("hybridge run, processor time", processor, "at most", MOST_CPU_SECONDS, "s"),
        Target("hybridge run, wall time", wall, "at most", MOST_SECONDS, "s"),
    )
    described = {"checkpoint": DEMO_CHECKPOINT.name, "dtype": "bfloat16", "caches": "warm"}
    return Report(require(*gates), results, targets, described)


def _run(out: Path, settings: StartUpSettings) -> ProcessUse:
    options = ("--prompt", PROMPT, "--max-new-tokens", str(settings.new_tokens), "--quiet")
    return run_measured(("-m", "hybridge", "run", str(out), *options))
