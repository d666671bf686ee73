"""End the process of a command without freeing every object first."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Exit with ``code``: as ``sys.exit`` does up to the functions of ``atexit``, then at once.

    At its end Python looks for garbage and frees objects one by one, a quarter of the time of an export; the system
    frees their memory in one go. Threads other than daemons are joined, and buffers are flushed, those of C too. A
    profiler and ``python -i`` need what Python still holds: for them the exit is the usual one.
    """
    if _is_observed() or sys.flags.inspect:
        sys.exit(code)
    # The two steps that Python's own end begins with; they have no public names.
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(KeyboardInterrupt):
            step()
    # The last one is what was standard output before the command moved it.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    with contextlib.suppress(ImportError, OSError, TypeError, AttributeError):
        import ctypes

        ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _is_observed() -> bool:
    """Whether a profiler or a debugger runs; from Python 3.12 on it may be a tool of sys.monitoring."""
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
