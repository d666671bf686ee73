"""Run a command and account for its time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


def run_measured(arguments: Sequence[str]) -> ProcessUse:
    """Run ``python ARGUMENTS`` from the checkout; its standard error passes through. RuntimeError when it fails."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} ended with exit code {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return ProcessUse(wall, cpu_s, usage.ru_maxrss * _RSS_UNIT, output)
