"""Write a folder atomically: a temporary sibling is filled, synced and renamed; a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.errors import OutputError
from hybridge.artifact.exchanged_names import exchange_names
from hybridge.artifact.path_kind import ARTIFACT_MARKS, ENGINE_MARKS, is_marked
from hybridge.artifact.temporary_folder import OLD, PARTIAL, REPLACED, clear_left_over, temporary_folder


@dataclass(frozen=True)
class FolderKind:
    """The kind of folder that is written: its ``noun``, the ``marks`` (artifact.path_kind) without which no folder is
    replaced.

    ``elsewhere``: the remedy if the folder is taken.
    """

    noun: str
    marks: tuple[tuple[str, str], ...]
    elsewhere: str


ARTIFACT = FolderKind("an export", ARTIFACT_MARKS, "give another path")
ENGINE = FolderKind("an engine", ENGINE_MARKS, "move it away")


@contextlib.contextmanager
def atomic_folder(out: Path, overwrite: bool = False, kind: FolderKind = ARTIFACT) -> Iterator[Path]:
    """Yield a temporary folder beside ``out`` that becomes ``out`` when the block ends well.

    On any exception, KeyboardInterrupt included, the temporary folder is removed and ``out`` is as before. What a
    killed run left beside ``out`` is removed first.
    OutputError: ``out`` exists (and not ``overwrite``), is a file, its parent cannot be written, or the disk is full.
    """
    clear_left_over(out)
    check_output(out, overwrite, kind)
    parents = [p for p in (out.parent, *out.parent.parents) if not p.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(out, PARTIAL) as temporary:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            sync_folder(temporary)
            # Checked again: another run may have written it in the meantime.
            check_output(out, overwrite, kind)
            _replace(temporary, out)
    except BrokenPipeError:
        # Not the folder's fault: the reader of the progress output has closed it.
        raise
    except OSError as error:
        raise _output_error(out, error, kind) from error
    finally:
        for parent in parents:
            with contextlib.suppress(OSError):  # not empty: it holds ``out``
                parent.rmdir()


def check_output(out: Path, overwrite: bool, kind: FolderKind = ARTIFACT) -> None:
    """Raise OutputError when ``out`` may not be written, before any work is done."""
    try:
        _check_output(out, overwrite, kind)
    except OSError as error:
        raise _output_error(out, error, kind) from error


def _check_output(out: Path, overwrite: bool, kind: FolderKind) -> None:
    above = next((parent for parent in out.parents if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise OutputError(f"{out}: expected a folder as its parent, found the file {above}: {kind.elsewhere}")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise OutputError(f"{out}: expected a folder to write, found a file or link: {kind.elsewhere}")
    if not out.exists():
        return
    # Only an artifact of an earlier run is replaced, never another folder.
    if any(out.iterdir()) and not is_marked(out, kind.marks):
        raise OutputError(
            f"{out}: holds files and is not {kind.noun} that hybridge wrote (no {kind.marks[0][0]}), so "
            f"it is not replaced: {kind.elsewhere}"
        )
    if not overwrite:
        raise OutputError(f"{out}: exists already: pass `overwrite=True` to replace it, or {kind.elsewhere}")


def _replace(temporary: Path, out: Path) -> None:
    """Rename ``temporary`` to ``out``; what had that name becomes a temporary folder.

    Where the system can, the two names are exchanged at once, so that ``out`` is never absent. Else a previous ``out``
    is set aside first, and put back if the rename fails; a run that is killed in between leaves it to the next one.
    """
    if not out.exists():
        os.rename(temporary, out)
    elif not exchange_names(temporary, out):
        with temporary_folder(out, OLD) as aside:
            old = aside / REPLACED
            try:
                os.rename(out, old)
                os.rename(temporary, out)
            finally:
                if old.exists() and not out.exists():
                    os.rename(old, out)


def sync_folder(folder: Path) -> None:
    """Bring new files to the disk, so that a power cut after the rename finds them; linked ones are there already."""
    for root, _, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            if path.stat().st_nlink == 1:
                sync_path(path)
        sync_path(Path(root))


def sync_path(path: Path) -> None:
    """Bring a file or the names in a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _output_error(out: Path, error: OSError, kind: FolderKind) -> OutputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free space" if kind is ENGINE else "free space or give another path"
        return OutputError(f"{out}: the disk is full: {remedy}; nothing was left behind")
    return OutputError(f"{out}: cannot be written: {error.strerror or error}: {kind.elsewhere}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
