"""Hidden folders next to an output, locked while a run uses them, so that a later run finds remains of killed ones.

A lock belongs to the open folder, not to a file: it is released when the process ends for any reason.
On systems without such locks, no folder counts as left over.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PARTIAL, OLD = ".partial", ".old"
# What an ".old" folder holds: the output that is being replaced.
REPLACED = "old"


@contextlib.contextmanager
def temporary_folder(out: Path, suffix: str) -> Iterator[Path]:
    """A new locked folder next to ``out``, removed at the end unless it was renamed. OSError: it cannot be made."""
    folder, lock = _create(out, suffix)
    try:
        yield folder
    finally:
        _remove(folder, out)
        if lock is not None:
            os.close(lock)


def clear_left_over(out: Path) -> None:
    """Remove the folders next to ``out`` that killed runs left; an output that one had set aside gets its name back.

    Folders of running processes, of other users and of other names stay.
    """
    pattern = re.compile(rf"{re.escape(_prefix(out))}[a-z0-9_]{{8}}({re.escape(PARTIAL)}|{re.escape(OLD)})")
    with contextlib.suppress(OSError):
        for path in sorted(out.parent.iterdir()):
            if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                _clear(path, out)


def _clear(folder: Path, out: Path) -> None:
    lock = lock_folder(folder, wait=False)
    if lock is None:
        return
    try:
        if folder.stat().st_uid == os.getuid():
            if _holds_the_only_output(folder, out):
                os.rename(folder / REPLACED, out)
            _remove(folder, out)
    finally:
        os.close(lock)


def _remove(folder: Path, out: Path) -> None:
    if not _holds_the_only_output(folder, out):
        shutil.rmtree(folder, ignore_errors=True)


def _holds_the_only_output(folder: Path, out: Path) -> bool:
    """True when the previous output was set aside into ``folder`` and nothing has taken its place."""
    return folder.suffix == OLD and (folder / REPLACED).is_dir() and not os.path.lexists(out)


def _create(out: Path, suffix: str) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(out), suffix=suffix, dir=out.parent))
        lock = lock_folder(folder, wait=True)
        # Another run may have taken it for abandoned before it was locked.
        if folder.is_dir():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _prefix(out: Path) -> str:
    return f".{out.name}.hybridge-"


def lock_folder(folder: Path, wait: bool) -> int | None:
    """A descriptor that holds the lock on ``folder``; None when another process holds it or it cannot be locked."""
    try:
        import fcntl
    except ImportError:  # not Unix
        return None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
