"""Exchange the names of two folders in one step, where the system can."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange_names(one: Path, other: Path) -> bool:
    """Give each of two existing paths the name of the other; False, and nothing changed, where that cannot be.

    It is renameat2 of Linux. Another system, a C library before glibc 2.28 or a file system without it gives False.
    """
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
