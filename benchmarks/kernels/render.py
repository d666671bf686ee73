"""Tables of the kernel benchmarks for docs/reference/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import table

_MOST_LISTED = 4  # cases of a group that missed a target


def machine_table(document: Mapping[str, Any]) -> str:
    """What the kernels ran on."""
    device, versions = document["device"], document["versions"]
    rows = [
        (
            "GPU",
            f"{device['name']}, {device['multiprocessors']} multiprocessors, {device['memory_bytes'] / 2**30:.0f} GiB",
        ),
        (
            "versions",
            f"torch {device['torch']}, CUDA {device['cuda']}, NVRTC {device['nvrtc']}, Python {versions['python']}",
        ),
        ("commit", f"`{document['commit']}`"),
    ]
    return table(("machine", ""), rows)


def group_table(document: Mapping[str, Any]) -> str:
    """One row for each group of cases; ValueError when a case is not correct."""
    header = ("kernel", "cases", "share of copy bandwidth", "times faster than the best peer", "targets missed")
    return table(header, [_cells(name, rows) for name, rows in document["groups"].items()])


def _cells(name: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    wrong = [row["case"] for row in rows if not row["correct"]]
    if wrong:
        raise ValueError(f"{name}: expected correct results, found wrong ones for {', '.join(wrong)}")
    shares = [100 * row["copy_bandwidth_share"] for row in rows]
    ratios = [row["speed_up"] for row in rows if "speed_up" in row]
    faster = f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
    missed = [_missed(row) for row in rows if not all(target["met"] for target in row["targets"].values())]
    listed = ", ".join(missed) if len(missed) <= _MOST_LISTED else f"{len(missed)} cases"
    return f"`{name}`", str(len(rows)), f"{min(shares):.0f} to {max(shares):.0f} %", faster, listed


def _missed(row: Mapping[str, Any]) -> str:
    wanted = [_target(name, target) for name, target in row["targets"].items() if not target["met"]]
    return f"{row['case']} ({', '.join(wanted)})"


def _target(name: str, target: Mapping[str, Any]) -> str:
    at_least = target["at_least"]
    return f"{100 * at_least:.0f} % of copy" if name == "copy_bandwidth_share" else f"{at_least:.3g}x"
