"""Write a folder atomically: a temporary sibling is filled, synced and renamed; a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from artifact.errors import OutputError

MARKER_FILE = "manifest.json"


@contextlib.contextmanager
def atomic_folder(out: Path, overwrite: bool = False, marker: str = MARKER_FILE) -> Iterator[Path]:
    """Yield a temporary folder beside ``out`` that becomes ``out`` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary folder is removed and ``out`` is as before.
    OutputError: ``out`` exists (and not ``overwrite``), is a file, its parent cannot be written, or the disk is full.
    """
    check_output(out, overwrite, marker)
    parents = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        _sync(temporary)
        # Once more: another run may have written it meanwhile.
        check_output(out, overwrite, marker)
        _replace(temporary, out)
    except OSError as error:
        raise _output_error(out, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for parent in parents:
            with contextlib.suppress(OSError):  # not empty: it holds ``out``
                parent.rmdir()


def check_output(out: Path, overwrite: bool, marker: str = MARKER_FILE) -> None:
    """Raise OutputError when ``out`` may not be written, before any work is done.

    ``marker`` names the file by which a folder that Hybridge wrote is known: only such a folder is replaced.
    """
    try:
        _check_output(out, overwrite, marker)
    except OSError as error:
        raise _output_error(out, error) from error


def _check_output(out: Path, overwrite: bool, marker: str) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise OutputError(f"{out}: expected a folder to write, found a file or link: give another path")
    if not out.exists():
        return
    if not overwrite:
        raise OutputError(f"{out}: exists already: pass --overwrite to replace it, or give another path")
    # Only what an earlier run wrote is ever replaced: never somebody's home folder.
    if any(out.iterdir()) and not (out / marker).is_file():
        raise OutputError(f"{out}: is not a folder that hybridge wrote (no {marker}): give another path")


def _replace(temporary: Path, out: Path) -> None:
    """Rename ``temporary`` to ``out``; a previous ``out`` is set aside first and put back if the rename fails."""
    if not out.exists():
        os.rename(temporary, out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    old = aside / "old"
    try:
        os.rename(out, old)
        os.rename(temporary, out)
    finally:
        if old.exists() and not out.exists():
            os.rename(old, out)
        shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring new files to the disk, so that a power cut after the rename finds them; linked ones are there already."""
    for root, _, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            if path.stat().st_nlink == 1:
                _sync_path(path)
        _sync_path(Path(root))


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _output_error(out: Path, error: OSError) -> OutputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(f"{out}: the disk is full: free space or give another path; nothing was left behind")
    return OutputError(f"{out}: cannot be written: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
