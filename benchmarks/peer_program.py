"""Run a program of a peer."""

from __future__ import annotations

import subprocess
import sys


def run_program(command: list[str]) -> str:
    """Standard output of ``command``.

    CalledProcessError where it fails, after its last output on standard error.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    done.check_returncode()
    return done.stdout
