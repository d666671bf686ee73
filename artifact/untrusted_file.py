"""Opens files of untrusted folders: the one place that decides which paths are accepted.

The rule for a file of a folder (a checkpoint, an artifact, an engine): its name is relative and has no "..", it is a
regular file, and it is inside the folder after all links are followed. The one exception is a snapshot of a Hugging
Face cache (models--NAME/snapshots/REVISION), which holds links to its own repository's blobs (models--NAME/blobs/*).

A file that the user names directly must be a regular file; its links may lead anywhere.

A file is opened first and checked afterwards, so that the checked file is the one that is read; it is opened without
waiting, because a pipe without a writer would block forever. Each folder below the given one is opened without
following links, so a folder that is replaced by a link in between is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePath
from typing import BinaryIO

from hybridge.artifact.errors import ArtifactError, HybridgeError

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def has_file(folder: Path, name: str | PurePath) -> bool:
    """Whether ``folder`` has an entry ``name``, of any kind; opening it reports what is wrong with it."""
    return os.path.lexists(folder / name)


def open_inside(
    folder: Path,
    name: str | PurePath,
    limit: int | None,
    error: type[HybridgeError] = ArtifactError,
    remedy: str = "export the checkpoint again",
) -> BinaryIO:
    """Open the file ``name`` of the untrusted ``folder`` for reading.

    limit: the most bytes that it may have; None only for what is mapped and never read whole.
    ``error``, which ends in ``remedy``: it is missing, outside the folder, not regular, too large or unreadable.
    """
    path = folder / name
    try:
        _check_name(name)
        root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
        if target.is_relative_to(root):
            handle = _open_below(root, target.relative_to(root))
        elif target.parent == _blobs_of(root):
            handle = os.open(target, _FLAGS | _NO_LINKS)
        else:
            raise _Refused(f"expected a file inside {folder}, found a link that leaves it")
        return _regular(handle, limit)
    except (_Refused, OSError, ValueError) as cause:
        raise _failure(path, cause, error, remedy) from cause


def open_given(
    path: Path, limit: int | None, error: type[HybridgeError] = ArtifactError, remedy: str = "give another file"
) -> BinaryIO:
    """Open a file that the user names for reading; links are followed. Errors and ``limit`` as for ``open_inside``."""
    try:
        return _regular(os.open(path, _FLAGS), limit)
    except (_Refused, OSError, ValueError) as cause:
        raise _failure(path, cause, error, remedy) from cause


def read_inside(
    folder: Path,
    name: str | PurePath,
    limit: int,
    error: type[HybridgeError] = ArtifactError,
    remedy: str = "export the checkpoint again",
) -> bytes:
    """All bytes of the file that ``open_inside`` opens."""
    with open_inside(folder, name, limit, error, remedy) as file:
        return _content(file, folder / name, limit, error, remedy)


def read_given(
    path: Path, limit: int, error: type[HybridgeError] = ArtifactError, remedy: str = "give another file"
) -> bytes:
    """All bytes of the file that ``open_given`` opens."""
    with open_given(path, limit, error, remedy) as file:
        return _content(file, path, limit, error, remedy)


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


class _Refused(Exception):
    """The sentence's middle part: what was expected and what was found."""


def _check_name(name: str | PurePath) -> None:
    pure = PurePath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise _Refused(f"expected a file inside the folder, found the name {str(name)[:200]!r}")


def _open_below(root: Path, relative: Path) -> int:
    """A descriptor of ``relative``, a path without links, below ``root``."""
    if os.open not in os.supports_dir_fd or not _NO_LINKS:  # not Unix
        return os.open(root / relative, _FLAGS)
    *folders, last = relative.parts or (".",)
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | _NO_LINKS, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, _FLAGS | _NO_LINKS, dir_fd=at)
    finally:
        os.close(at)


def _regular(handle: int, limit: int | None) -> BinaryIO:
    """The open file; _Refused, and closed, unless it is a regular one of at most ``limit`` bytes."""
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "something else")
            raise _Refused(f"expected a file, found {kind}")
        if limit is not None and status.st_size > limit:
            raise _Refused(f"expected at most {limit} bytes, found {status.st_size}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _content(file: BinaryIO, path: Path, limit: int, error: type[HybridgeError], remedy: str) -> bytes:
    try:
        # One byte more: a file may grow after it was looked at.
        raw = file.read(limit + 1)
        if len(raw) > limit:
            raise _Refused(f"expected at most {limit} bytes, found more")
    except (_Refused, OSError) as cause:
        raise _failure(path, cause, error, remedy) from cause
    return raw


def _failure(path: Path, cause: Exception, error: type[HybridgeError], remedy: str) -> HybridgeError:
    if isinstance(cause, FileNotFoundError):
        sentence = f"expected the file {path}, found none"
    elif isinstance(cause, _Refused):
        sentence = f"{path}: {cause}"
    elif isinstance(cause, OSError) and cause.errno == errno.ELOOP:
        sentence = f"{path}: expected a file, found a loop of links"
    elif isinstance(cause, OSError):
        sentence = f"{path}: cannot be read: {cause.strerror or cause}"
    else:  # a NUL in the name
        sentence = f"{str(path)!r}: expected the name of a file, found a character that no name has"
    return error(f"{sentence}: {remedy}")


def _blobs_of(root: Path) -> Path | None:
    """The blobs to which ``root``, in a snapshot of a Hugging Face cache, may link; None where it is in none."""
    for snapshots in root.parents:
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            return snapshots.parent / "blobs"
    return None
