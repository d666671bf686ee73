"""Export of a random 1.7 GB checkpoint: time, peak memory and bytes written, each from a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.agreement import checkpoint_gate
from benchmarks.command import run_command
from benchmarks.measure import Spread, take_turns
from benchmarks.measured_process import ProcessUse, run_measured
from benchmarks.random_checkpoint import EXPORT_SHAPE, NemotronHShape, write_random_checkpoint
from benchmarks.report import Gate, Report, Target

NAME, REPEATS = "export", 5
MODES: dict[str, tuple[str, ...]] = {"with_scan": (), "without_scan": ("--no-scan",)}
MOST_SECONDS = {"with_scan": 10.0, "without_scan": 8.0}
MOST_PEAK_BYTES, MOST_NEW_BYTES = 900e6, 5e6
THREADS = 2


@dataclass(frozen=True)
class ExportSettings:
    """The model to export; ``folder`` is a file system with room for it (None: that of temporary files)."""

    shape: NemotronHShape = EXPORT_SHAPE
    repeats: int = REPEATS
    folder: Path | None = None


def run(settings: ExportSettings) -> Report:
    """Write the checkpoint, check one export of it, then measure exports in turns, with and without the scan."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-", dir=settings.folder) as name:
        checkpoint, out = Path(name) / "checkpoint", Path(name) / "out"
        nbytes = write_random_checkpoint(checkpoint, settings.shape)
        described = {**asdict(settings.shape), "dtype": "bfloat16", "checkpoint_bytes": nbytes, "page_cache": "warm"}
        _export(checkpoint, out, "with_scan")
        gate = _gate(checkpoint, out)
        if not gate.passed:
            return Report(NAME, described, (gate,))
        uses = _measure(checkpoint, out, settings.repeats)
        new = new_bytes(out, checkpoint)
    results = {mode: _mode_json(used) for mode, used in uses.items()}
    return Report(NAME, described, (gate,), {**results, "new_bytes": new}, _targets(results, new))


def new_bytes(out: Path, checkpoint: Path) -> int:
    """Bytes on disk under ``out`` that it does not share with ``checkpoint`` through hard links."""
    shared = {(stat.st_dev, stat.st_ino) for stat in (path.stat() for path in checkpoint.iterdir())}
    stats = [path.stat() for path in out.rglob("*") if path.is_file()]
    return sum(512 * stat.st_blocks for stat in stats if (stat.st_dev, stat.st_ino) not in shared)


def _measure(checkpoint: Path, out: Path, repeats: int) -> dict[str, list[ProcessUse]]:
    uses: dict[str, list[ProcessUse]] = {mode: [] for mode in MODES}

    def measure(mode: str) -> float:
        uses[mode].append(_export(checkpoint, out, mode))
        return uses[mode][-1].wall_s

    take_turns({mode: partial(measure, mode) for mode in MODES}, repeats, warmup=0)
    return uses


def _export(checkpoint: Path, out: Path, mode: str) -> ProcessUse:
    paths = (str(checkpoint), str(out))
    return run_measured(("-m", "hybridge", "export", *paths, "--overwrite", "--quiet", *MODES[mode]))


def _gate(checkpoint: Path, out: Path) -> Gate:
    """The export computes what transformers computes; asked in a process that gives its memory back.

    A process's peak memory begins with that of the process that started it, so this one has to stay small.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(checkpoint_gate, checkpoint, out, THREADS, 7, 2).result()


def _mode_json(uses: list[ProcessUse]) -> dict[str, Any]:
    return {
        "wall_s": Spread.of(use.wall_s for use in uses).to_json(),
        "cpu_s": Spread.of(use.cpu_s for use in uses).to_json(),
        "peak_rss_bytes": Spread.of(use.peak_rss for use in uses).to_json(),
    }


def _targets(results: Mapping[str, Any], new: int) -> tuple[Target, ...]:
    walls = [
        Target(f"wall time {mode.replace('_', ' ')}", results[mode]["wall_s"]["median"], "at most", most, "s")
        for mode, most in MOST_SECONDS.items()
    ]
    peak = max(result["peak_rss_bytes"]["max"] for result in results.values())
    return (
        *walls,
        Target("peak memory", peak / 1e6, "at most", MOST_PEAK_BYTES / 1e6, "MB"),
        Target("newly written", new / 1e6, "at most", MOST_NEW_BYTES / 1e6, "MB"),
    )


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(ExportSettings(repeats=repeats)), REPEATS))
