"""The folder of a user's caches, and whether files from it may be executed."""

from __future__ import annotations

import errno
import os
import stat
import sys
import warnings
from pathlib import Path


def user_cache_folder(name: str) -> Path:
    """``name`` in the folder ``hybridge`` of the user's caches: XDG_CACHE_HOME or ~/.cache, %LOCALAPPDATA% on Windows.

    RuntimeError where none of them is known: a user without a home folder.
    """
    return _caches() / "hybridge" / name


def make_private(folder: Path) -> None:
    """Make the cache ``folder`` (mode 0700) if it is missing; OSError where another user may write to it.

    Its entries are code, so a folder that users other than this one and root can change is not used. Where the system
    has no such owners and modes (Windows), nothing is checked.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "win32":
        return
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"expected a folder that you own, found owner {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(errno.EPERM, f"expected a folder that only you may write to, found mode {mode:04o}")


def is_private(folder: Path, effect: str) -> bool:
    """``make_private``; False where that fails, with a warning that ends in ``effect`` where others may write to it."""
    try:
        make_private(folder)
    except OSError as error:
        if error.errno == errno.EPERM:
            warnings.warn(
                f"{folder}: {error.strerror}: {effect}; set XDG_CACHE_HOME to a folder that only you can write",
                RuntimeWarning,
                stacklevel=3,
            )
        return False
    return True


def _caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG Base Directory Specification: paths that are relative are ignored.
    return named if named.is_absolute() else Path.home() / ".cache"
