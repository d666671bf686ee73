"""Repeated measurements: medians with their range, contestants that take turns, and what a process used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Linux counts in KiB, macOS in bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
_STARTED = time.perf_counter()


@dataclass(frozen=True)
class Spread:
    """Median and range of ``repeats`` measurements of one quantity."""

    median: float
    min: float
    max: float
    repeats: int

    @classmethod
    def of(cls, values: Iterable[float], scale: float = 1.0) -> Spread:
        """The spread of at least one value times ``scale``."""
        numbers = [scale * value for value in values]
        return cls(median(numbers), min(numbers), max(numbers), len(numbers))

    @classmethod
    def of_ratios(cls, above: Iterable[float], below: Iterable[float]) -> Spread:
        """The spread of the quotients of values measured in the same repeat."""
        return cls.of(a / b for a, b in zip(above, below, strict=True))

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        return asdict(self)


def spreads(values: Mapping[str, Iterable[float]], scale: float = 1.0) -> dict[str, Spread]:
    """The spread of each contestant, by name."""
    return {name: Spread.of(each, scale) for name, each in values.items()}


def take_turns(contestants: Mapping[str, Callable[[], float]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """What each contestant measured, by name: A B C, A B C, and so on.

    Taking turns lets a disturbance of the machine meet all of them. ``warmup`` rounds are not kept.
    """
    values: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(-warmup, repeats):
        for name, contestant in contestants.items():
            value = contestant()
            if round_ >= 0:
                values[name].append(value)
    return values


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A contestant that measures the seconds of ``work``."""
    return lambda: seconds(work)


def note(text: str) -> None:
    """Print the progress of a long benchmark to standard error, after the seconds since it started."""
    print(f"{time.perf_counter() - _STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ProcessUse:
    """Wall-clock and processor seconds, the peak of resident memory in bytes (mapped file pages included), output."""

    wall_s: float
    cpu_s: float
    peak_rss: int
    output: str


# Linux includes in a process's peak the memory of its parent when it was started, so a small process starts it.
# That one appends a NUL and its record to the output of the measured command.
_LAUNCHER = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
code = subprocess.call([sys.executable, *sys.argv[1:]])
wall = time.perf_counter() - started
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print("\\0" + json.dumps([code, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]), flush=True)
"""


def run_measured(arguments: Sequence[str]) -> ProcessUse:
    """Run ``python ARGUMENTS`` from the checkout; its standard error passes through. RuntimeError when it fails.

    From the second run on modules are compiled, as those of an installed package are.
    """
    command = [sys.executable, "-c", _LAUNCHER, *arguments]
    compiles = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=ROOT, env=compiles, stdout=subprocess.PIPE, text=True, check=True)
    output, _, record = done.stdout.rpartition("\0")
    code, wall, cpu, peak = json.loads(record)
    if code:
        raise RuntimeError(f"python {' '.join(arguments)} ended with exit code {code}")
    return ProcessUse(wall, cpu, peak * _RSS_UNIT, output)


def use_spreads(uses: Sequence[ProcessUse]) -> dict[str, Spread]:
    """Wall-clock seconds, processor seconds and peak memory of several runs."""
    return {
        "wall_s": Spread.of(use.wall_s for use in uses),
        "cpu_s": Spread.of(use.cpu_s for use in uses),
        "peak_rss_bytes": Spread.of(use.peak_rss for use in uses),
    }
