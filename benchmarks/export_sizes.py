"""Export of checkpoints from 0.6 to 550 billion parameters, whose weights are zeros in sparse files: time and memory.

What an export does to weights is to link them; the scan, which reads all of them, is left out. The largest model and
the one of 9 billion are constructed, from the fields of published models of their families.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import run_command
from benchmarks.measure import Spread
from benchmarks.measured_process import ProcessUse, run_measured
from benchmarks.report import Report, Target
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import write_sparse_checkpoint

NAME, REPEATS = "export_sizes", 1
MOST_PEAK_BYTES = 1e9
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
class Size:
    """A model, and the most seconds that its export may take on two quiet cores."""

    name: str
    config: Mapping[str, Any]
    most_seconds: float
    constructed: bool = False


SIZES = (
    Size("Qwen3-0.6B", PUBLISHED["Qwen3-0.6B"], 20),
    Size("Qwen3.5-9B", QWEN3_5_9B, 30, constructed=True),
    Size("Nemotron-3-Nano-30B-A3B", PUBLISHED["NVIDIA-Nemotron-3-Nano-30B-A3B"], 30),
    Size("Qwen3-Next-80B-A3B", PUBLISHED["Qwen3-Next-80B-A3B-Thinking"], 45),
    Size("Nemotron 550B", NEMOTRON_550B, 60, constructed=True),
)


def run(repeats: int, sizes: tuple[Size, ...] = SIZES, folder: Path | None = None) -> Report:
    """Export each of ``sizes`` in a process of its own; ``folder`` is for the sparse files (None: a temporary one)."""
    results = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="hybridge-bench-", dir=folder) as name:
            nbytes = write_sparse_checkpoint(Path(name) / "checkpoint", size.config)
            uses = [_export(Path(name)) for _ in range(repeats)]
        results[size.name] = _json(size, nbytes, uses)
    described = {"weights": "zeros in sparse files", "scan": False, "sizes": [size.name for size in sizes]}
    return Report(NAME, described, (), results, tuple(_targets(sizes, results)))


def _export(folder: Path) -> ProcessUse:
    paths = (str(folder / "checkpoint"), str(folder / "out"))
    return run_measured(("-m", "hybridge", "export", *paths, "--no-scan", "--overwrite", "--quiet"))


def _json(size: Size, nbytes: int, uses: list[ProcessUse]) -> dict[str, Any]:
    return {
        "constructed": size.constructed,
        "checkpoint_bytes": nbytes,
        "wall_s": Spread.of(use.wall_s for use in uses).to_json(),
        "cpu_s": Spread.of(use.cpu_s for use in uses).to_json(),
        "peak_rss_bytes": Spread.of(use.peak_rss for use in uses).to_json(),
    }


def _targets(sizes: tuple[Size, ...], results: Mapping[str, Any]) -> list[Target]:
    targets = []
    for size in sizes:
        result = results[size.name]
        targets.append(Target(f"{size.name}, wall time", result["wall_s"]["median"], "at most", size.most_seconds, "s"))
        peak = result["peak_rss_bytes"]["max"] / 1e6
        targets.append(Target(f"{size.name}, peak memory", peak, "at most", MOST_PEAK_BYTES / 1e6, "MB"))
    return targets


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", run, REPEATS))
