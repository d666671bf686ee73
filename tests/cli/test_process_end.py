"""The end of a command's process."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.command import ROOT

PROFILED = """
import sys
from types import SimpleNamespace
from hybridge.cli.process_end import end_process
sys.monitoring = SimpleNamespace(get_tool=lambda number: "cProfile" if number == 2 else None)
try:
    end_process(3)
finally:
    print("the table of the profiler")
"""


def test_profilers_see_the_usual_exit() -> None:
    """cProfile, from Python 3.12 on a tool of sys.monitoring, prints its table when the program has ended."""
    ended = subprocess.run([sys.executable, "-c", PROFILED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (3, "the table of the profiler\n")
