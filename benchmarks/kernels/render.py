"""Tables of the kernel benchmarks for docs/reference/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.markdown import number, spread_cell, table


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


def group_tables(document: Mapping[str, Any]) -> str:
    """One table a group, with the geometric mean of the speed-ups; ValueError when a row is not correct."""
    parts = []
    for name, rows in document["groups"].items():
        wrong = [row["case"] for row in rows if not row["correct"]]
        if wrong:
            raise ValueError(f"{name}: expected correct results, found wrong ones for {', '.join(wrong)}")
        parts.append(f"### `{name}`\n\n{_group(rows)}")
    return "\n\n".join(parts)


def _group(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("case", "µs", "floor, µs", "share of copy bandwidth", "best peer, µs", "times faster", "target")
    text = table(header, [_cells(row) for row in rows])
    ratios = [row["speed_up"] for row in rows if "speed_up" in row]
    return f"{text}\n\nGeometric mean of the speed-ups: {geometric_mean(ratios):.2f}." if ratios else text


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    peer = f"{number(row['peers_us'][row['best_peer']])} ({row['best_peer']})" if "best_peer" in row else ""
    ratio = f"{row['speed_up']:.2f}" if "speed_up" in row else ""
    share = f"{100 * row['copy_bandwidth_share']:.0f} %"
    targets = ", ".join(_target(name, target) for name, target in row["targets"].items())
    return row["case"], spread_cell(row["us"]), number(row["floor_us"]), share, peer, ratio, targets


def _target(name: str, target: Mapping[str, Any]) -> str:
    wanted = (
        f"{100 * target['at_least']:.0f} % of copy" if name == "copy_bandwidth_share" else f"{target['at_least']:g}x"
    )
    return f"{wanted}: {'met' if target['met'] else '**missed**'}"
