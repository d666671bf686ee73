"""What a long benchmark is at, on standard error."""

from __future__ import annotations

import sys
import time

_STARTED = time.perf_counter()


def note(text: str) -> None:
    """Print ``text`` after the seconds since the benchmark's modules were loaded."""
    print(f"{time.perf_counter() - _STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)
