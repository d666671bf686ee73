#!/usr/bin/env python3
"""Compares two reports of hw_check.py: steps that no longer pass, and the ratio of every measurement.

python tools/hw_compare.py BEFORE.json AFTER.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.report import VERSION

Steps = Mapping[tuple[str, str], Mapping[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a step that passed before does not pass now, 2 for a file that is no report, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    try:
        before, after = _read(options.before), _read(options.after)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, report in (("before", before), ("after", after)):
        gpu = report["machine"].get("gpu") or {}
        print(f"{name:7} Hybridge {report['hybridge']}, {gpu.get('name', 'no GPU')}, {report['created']}")
    lost = list(_lost(_steps(before), _steps(after)))
    for line in lost:
        print(line)
    for form, what, old, new in _measurements(_steps(before), _steps(after)):
        print(f"{form:24} {what:32} {old:12.5g} {new:12.5g} {new / old if old else float('nan'):7.3f}")
    return 1 if lost else 0


def _read(path: Path) -> Mapping[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["hw_check"] == VERSION:
            assert isinstance(report, dict)
            return report
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path}: expected a report of hw_check.py, version {VERSION}, found another file: run it again")


def _steps(report: Mapping[str, Any]) -> Steps:
    return {(step.get("form", ""), step["step"]): step for step in report["steps"]}


def _lost(before: Steps, after: Steps) -> Iterator[str]:
    for (form, name), step in before.items():
        now = after.get((form, name), {}).get("status", "absent")
        if step["status"] == "passed" and now != "passed":
            why = after.get((form, name), {}).get("error", "")
            yield f"{form:24} {name:10} passed before, now {now}  {why}".rstrip()


def _measurements(before: Steps, after: Steps) -> Iterator[tuple[str, str, float, float]]:
    """Form, measurement, and its two values, where both reports have it."""
    for key, step in before.items():
        if key in after:
            new = dict(_numbers(after[key]))
            yield from ((key[0], what, old, new[what]) for what, old in _numbers(step) if what in new)


def _numbers(step: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if step["step"] == "build" and "nbytes" in step:
        yield "engine, bytes", step["nbytes"]
        yield "build, s", step["build_seconds"]
    if step["step"] != "speed" or "tensorrt" not in step:
        return
    for engine in ("tensorrt", "onnxruntime"):
        found = step[engine]
        for name, value in found["prefill"].items():
            yield f"{engine} {name} TTFT, s", value["ttft_s"]["p50"]
        for name, value in found["decode"].items():
            yield f"{engine} {name}, tok/s", value["tokens_per_second"]
            for rail, watts in (value["power"] or {"rails": {}})["rails"].items():
                yield f"{engine} {name} {rail}, W", watts["mean_w"]
        yield f"{engine} host memory, bytes", found["memory"]["peak_host_bytes"]


if __name__ == "__main__":
    sys.exit(main())
