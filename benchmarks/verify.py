"""What ``hybridge verify`` finds for the shipped checkpoints and for random ones of 0.6 B, its time and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hybridge
from benchmarks.artifacts import CHECKPOINTS, WEIGHTS, scratch_folder
from benchmarks.measure import run_measured
from benchmarks.random_checkpoint import write_random_checkpoint
from benchmarks.runner import Gate, Report, Target
from hybridge.artifact.safetensors_file import read_safetensors
from tools.published_configs import PUBLISHED

MOST_PEAK = 1.6
# Config fields of random checkpoints in addition to those of Qwen3-0.6B.
_LARGE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "random-qwen3-0.6b": {},
        "random-qwen3-0.6b-window-4096": {
            "use_sliding_window": True,
            "sliding_window": 4096,
            "max_window_layers": 14,
        },
    }
)


@dataclass(frozen=True)
class VerifySettings:
    """case: only checkpoints whose name contains this text; "tiny": those that ship."""

    case: str = ""


def run(settings: VerifySettings) -> Report:
    """Export and verify each checkpoint. Every result says whether it passed."""
    found = {}
    with scratch_folder() as work:
        names = [*sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir()), *_LARGE]
        for name in (name for name in names if settings.case in name):
            checkpoint = CHECKPOINTS / name
            if name in _LARGE:
                checkpoint = work / name
                write_random_checkpoint(checkpoint, {**PUBLISHED["Qwen3-0.6B"], **_LARGE[name]})
            found[name] = verified(checkpoint, work / f"{name}.out")
    failed = sum(not each["passed"] for each in found.values())
    peaks = {name: each.get("peak_over_float32") for name, each in found.items()}
    targets = tuple(
        Target(f"{name}, peak memory", peak, "at most", MOST_PEAK, "times the weights in float32")
        for name, peak in peaks.items()
        if peak is not None
    )
    return Report((Gate("checkpoints that are not verified", float(failed), 0.0),), found, targets, partial=True)


def verified(checkpoint: Path, out: Path) -> dict[str, Any]:
    """The verdict on ``checkpoint``, exported to ``out``, the largest error of each scenario, time and memory.

    peak_over_float32: peak memory of the process over the bytes of the model in float32; None for a model that is
    smaller than the libraries that run it.
    """
    hybridge.export(checkpoint, out)
    use = run_measured(["-m", "hybridge", "verify", str(checkpoint), str(out), "--json", "--quiet"])
    report = json.loads(use.output)
    largest: dict[str, dict[str, float]] = {}
    for found in report["comparisons"]:
        scenarios = largest.setdefault(found["engine"], {})
        scenarios[found["scenario"]] = max(scenarios.get(found["scenario"], 0.0), found["error"])
    tensors = read_safetensors(checkpoint / WEIGHTS).tensors.values()
    wide = sum(4 * tensor.nbytes // tensor.dtype.itemsize for tensor in tensors)
    names = ("passed", "verdict", "model_type", "reference", "tolerance")
    return {
        **{name: report[name] for name in names},
        "wall_s": round(use.wall_s, 1),
        "cpu_s": round(use.cpu_s, 1),
        "peak_bytes": use.peak_rss,
        "peak_over_float32": round(use.peak_rss / wide, 2) if wide > 10**9 else None,
        "largest_errors": largest,
    }
