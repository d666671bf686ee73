"""Run a command and account for its time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import ROOT

# Linux counts in KiB, macOS in bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class ProcessUse:
    """Wall-clock and processor seconds, the peak of resident memory in bytes (mapped file pages included), output."""

    wall_s: float
    cpu_s: float
    peak_rss: int
    output: str


# Linux counts into a process's peak what its parent held when it was started, so a small process starts it.
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
    """Run ``python ARGUMENTS`` from the checkout; its standard error passes through. RuntimeError when it fails."""
    command = [sys.executable, "-c", _LAUNCHER, *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    output, _, record = done.stdout.rpartition("\0")
    code, wall, cpu, peak = json.loads(record)
    if code:
        raise RuntimeError(f"python {' '.join(arguments)} ended with exit code {code}")
    return ProcessUse(wall, cpu, peak * _RSS_UNIT, output)
