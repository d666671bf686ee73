"""The folder in which a user's caches lie."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache_folder(name: str) -> Path:
    """``name`` in the folder ``hybridge`` of the user's caches: XDG_CACHE_HOME or ~/.cache, %LOCALAPPDATA% on Windows.

    RuntimeError where none of them is known: a user without a home folder.
    """
    return _caches() / "hybridge" / name


def _caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG Base Directory Specification: paths that are relative are ignored.
    return named if named.is_absolute() else Path.home() / ".cache"
