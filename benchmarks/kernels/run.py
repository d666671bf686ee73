"""Run the kernel benchmarks, group by group."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.kernels.case import checked, measured
from benchmarks.kernels.groups import GROUPS
from benchmarks.machine import device_json
from benchmarks.runner import Gate, Report


@dataclass(frozen=True)
class KernelSettings:
    """groups: which ones. case: only cases whose name contains this text. check: compare results, time nothing."""

    groups: tuple[str, ...] = tuple(GROUPS)
    case: str = ""
    check: bool = False


def run(settings: KernelSettings) -> Report:
    """Every row says whether its result is correct, and has a time only then. A missed target is a finding.

    An interrupt ends the run with the rows so far.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    results: dict[str, Any] = {"device": device_json(), "groups": groups}
    try:
        for name in settings.groups:
            _run_group(name, settings, groups.setdefault(name, []))
    except KeyboardInterrupt:
        results["interrupted"] = True
    wrong = sum(not row["correct"] for rows in groups.values() for row in rows)
    gate = Gate("rows with a wrong result", float(wrong), 0.0)
    return Report((gate,), results, partial=True)


def _run_group(name: str, settings: KernelSettings, rows: list[dict[str, Any]]) -> None:
    module, function = GROUPS[name].split(":")
    for case in getattr(importlib.import_module(f"benchmarks.kernels.{module}"), function)():
        if settings.case in case.name:
            rows.append(checked(case) if settings.check else measured(case))
            print(_line(name, rows[-1]), file=sys.stderr, flush=True)


def _line(group: str, row: dict[str, Any]) -> str:
    name = f"{group:26} {row['case']:44}"
    if "us" not in row:
        verdict = "" if row["correct"] else "WRONG: "
        return f"{name} {verdict}error {row['error']:.3g} (at most {row['tolerance']:.3g})"
    peer = f"  {row['speed_up']:5.2f}x {row['best_peer']}" if "speed_up" in row else ""
    missed = ", ".join(name for name, target in row["targets"].items() if not target["met"])
    numbers = f"{row['us'].median:9.2f} us  floor {row['floor_us']:8.2f}  {100 * row['copy_bandwidth_share']:5.1f}%"
    if "same_size_copy_share" in row:
        numbers += f" ({100 * row['same_size_copy_share']:.1f}% of a copy of the size)"
    return f"{name} {numbers}{peer}{f'  MISS {missed}' if missed else ''}"
