"""Exports: time, peak memory and bytes written, each export in a process of its own.

Times are compared with those of a process that only imports what every export imports: machines differ in both alike.
Both are taken from the start of the process to its end. An export leaves out some of what such an import statement
imports, and ends without freeing its objects one by one, which takes a quarter of the other process's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.agreement import checkpoint_gate
from benchmarks.artifacts import scratch_folder
from benchmarks.measure import ProcessUse, Spread, run_measured, take_turns, use_spreads
from benchmarks.random_checkpoint import EXPORT_MODEL, Config, write_random_checkpoint
from benchmarks.runner import Gate, Report, Target, require
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import write_sparse_checkpoint

MODES: dict[str, tuple[str, ...]] = {"with_scan": (), "without_scan": ("--no-scan",)}
MOST_SECONDS = {"with_scan": 10.0, "without_scan": 8.0}
# With the scan, over the time of IMPORTS.
MOST_OVER_IMPORTS = 1.15
IMPORTS = ("-c", "import torch, torch.onnx, torch._dynamo, torch.export")
MOST_PEAK_BYTES, MOST_NEW_BYTES = 900e6, 5e6
THREADS = 2
MOST_PEAK_BYTES_OF_SIZES = 1e9
# Sizes as transformers has them by default, for the 9 B model of the family.
QWEN3_5_9B: Mapping[str, Any] = {
    **PUBLISHED["Qwen3.5-27B"],
    "text_config": {
        **PUBLISHED["Qwen3.5-27B"]["text_config"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8,
        "linear_num_value_heads": 32,
        "num_attention_heads": 16,
        "num_hidden_layers": 32,
    },
}
QWEN3_5_OF_FOUR: Mapping[str, Any] = {
    **QWEN3_5_9B,
    "text_config": {
        **QWEN3_5_9B["text_config"],
        "layer_types": QWEN3_5_9B["text_config"]["layer_types"][:4],
        "num_hidden_layers": 4,
    },
}
# As Nemotron-3-Super, wider and with larger experts.
NEMOTRON_550B: Mapping[str, Any] = {
    **PUBLISHED["NVIDIA-Nemotron-3-Super-120B-A12B"],
    "hidden_size": 8192,
    "hybrid_override_pattern": "MEMEMEME*" * 12,
    "intermediate_size": 5120,
    "mamba_num_heads": 256,
    "moe_intermediate_size": 5120,
    "moe_latent_size": 2048,
    "moe_shared_expert_intermediate_size": 10240,
    "num_attention_heads": 64,
    "num_hidden_layers": 108,
}


@dataclass(frozen=True)
class ExportSettings:
    """A random model of the config ``model``. folder: where there is room for it (default: that of temporary files)."""

    model: Config = field(default_factory=lambda: EXPORT_MODEL)
    repeats: int = 5
    folder: str | None = None


def run(settings: ExportSettings) -> Report:
    """Check one export, then measure exports in turns, with and without the scan."""
    uses: dict[str, list[ProcessUse]] = {mode: [] for mode in MODES}
    with scratch_folder(settings.folder) as folder:
        checkpoint, out = folder / "checkpoint", folder / "out"
        nbytes = write_random_checkpoint(checkpoint, settings.model)
        export(checkpoint, out)
        gates = require(_gate(checkpoint, out, tokens=7))

        def measure(mode: str) -> float:
            uses[mode].append(export(checkpoint, out, *MODES[mode]))
            return uses[mode][-1].wall_s

        contestants = {mode: partial(measure, mode) for mode in MODES} | {"imports": imports_seconds}
        times = take_turns(contestants, settings.repeats, warmup=0)
        new = new_bytes(out, checkpoint)
    results: dict[str, Any] = {mode: use_spreads(used) for mode, used in uses.items()}
    results["imports_s"] = Spread.of(times["imports"])
    results["over_imports"] = Spread.of_ratios(times["with_scan"], times["imports"])
    peak = max(results[mode]["peak_rss_bytes"].max for mode in MODES)
    walls = [
        Target(f"wall time {mode.replace('_', ' ')}", results[mode]["wall_s"].median, "at most", most, "s")
        for mode, most in MOST_SECONDS.items()
    ]
    targets = (
        *walls,
        Target("wall time over that of the imports", results["over_imports"].median, "at most", MOST_OVER_IMPORTS, "x"),
        Target("peak memory", peak / 1e6, "at most", MOST_PEAK_BYTES / 1e6, "MB"),
        Target("newly written", new / 1e6, "at most", MOST_NEW_BYTES / 1e6, "MB"),
    )
    described = {"dtype": "bfloat16", "checkpoint_bytes": nbytes, "page_cache": "warm"}
    return Report(gates, {**results, "new_bytes": new}, targets, described)


@dataclass(frozen=True)
class Size:
    """A model, and the most seconds that its export may take on two quiet cores.

    most_over_imports: its time divided by that of ``IMPORTS``, where that has a goal.
    """

    name: str
    config: Mapping[str, Any]
    most_seconds: float
    constructed: bool = False
    most_over_imports: float | None = None


SIZES = (
    Size("Qwen3-0.6B", PUBLISHED["Qwen3-0.6B"], 20),
    Size("Qwen3.5-9B", QWEN3_5_9B, 30, constructed=True),
    Size("Nemotron-3-Nano-30B-A3B", PUBLISHED["NVIDIA-Nemotron-3-Nano-30B-A3B"], 30),
    Size("Qwen3-Next-80B-A3B", PUBLISHED["Qwen3-Next-80B-A3B-Thinking"], 45),
    Size("Nemotron 550B", NEMOTRON_550B, 60, constructed=True, most_over_imports=5.0),
    Size("Qwen3.5 of four layers", QWEN3_5_OF_FOUR, 6, constructed=True, most_over_imports=1.2),
)


@dataclass(frozen=True)
class SizesSettings:
    """case: only sizes whose name contains this text. folder: for the sparse files."""

    case: str = ""
    repeats: int = 1
    folder: str | None = None


def run_sizes(settings: SizesSettings) -> Report:
    """Export checkpoints whose weights are zeros in sparse files, without the scan, which reads all of them.

    An export links weights. The largest model and the one of 9 billion parameters are constructed, from the fields of
    published models of their families.
    """
    results: dict[str, Any] = {}
    targets = []
    for size in (each for each in SIZES if settings.case in each.name):
        with scratch_folder(settings.folder) as folder:
            nbytes = write_sparse_checkpoint(folder / "checkpoint", size.config)
            uses, imports = [], []
            for _ in range(settings.repeats):
                uses.append(export(folder / "checkpoint", folder / "out", "--no-scan"))
                imports.append(imports_seconds())
        ratio = Spread.of_ratios((use.wall_s for use in uses), imports)
        found = {"constructed": size.constructed, "checkpoint_bytes": nbytes, **use_spreads(uses)}
        results[size.name] = {**found, "imports_s": Spread.of(imports), "over_imports": ratio}
        wall, peak = results[size.name]["wall_s"].median, results[size.name]["peak_rss_bytes"].max
        targets += [
            Target(f"{size.name}, wall time", wall, "at most", size.most_seconds, "s"),
            Target(f"{size.name}, peak memory", peak / 1e6, "at most", MOST_PEAK_BYTES_OF_SIZES / 1e6, "MB"),
        ]
        if size.most_over_imports is not None:
            title = f"{size.name}, wall time over that of the imports"
            targets.append(Target(title, ratio.median, "at most", size.most_over_imports, "x"))
    described = {"weights": "zeros in sparse files", "scan": False, "sizes": list(results)}
    return Report((), results, tuple(targets), described)


def export(checkpoint: Path, out: Path, *options: str) -> ProcessUse:
    """What the command ``hybridge export`` used."""
    return run_measured(("-m", "hybridge", "export", str(checkpoint), str(out), "--overwrite", "--quiet", *options))


def imports_seconds() -> float:
    """Seconds of a process that imports what every export imports."""
    return run_measured(IMPORTS).wall_s


def new_bytes(out: Path, checkpoint: Path) -> int:
    """Bytes on disk under ``out`` that it does not share with ``checkpoint`` through hard links."""
    shared = {(stat.st_dev, stat.st_ino) for stat in (path.stat() for path in checkpoint.iterdir())}
    stats = [path.stat() for path in out.rglob("*") if path.is_file()]
    return sum(512 * stat.st_blocks for stat in stats if (stat.st_dev, stat.st_ino) not in shared)


def _gate(checkpoint: Path, out: Path, tokens: int) -> Gate:
    """The export computes what transformers computes.

    Checked in another process: the peak memory of a process includes that of its parent when it started, so this one
    has to stay small.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(checkpoint_gate, "the export", checkpoint, out, THREADS, tokens, 2).result()
